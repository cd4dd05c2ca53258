"""A prompt that is prefilled elsewhere, in the simulator: its KV leaves while later chunks are computed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final, NamedTuple

from pagemesh.config import RoutingConfig
from pagemesh.sim.model import LinkModel, MeshModel
from pagemesh.sim.network import Flow
from pagemesh.sim.simulation import MeshSize, Simulation
from pagemesh.sim.trace import Span, TraceRequest
from tools.pictures.svg import Drawing

NUM_PROMPT_TOKENS: Final = 8192
_BYTES_PER_SECOND: Final = 6e9
_LEFT, _WIDTH = 190, 790


class Sent(NamedTuple):
    """KV that went as one piece; times in seconds since the request came."""

    began: float
    ended: float
    num_bytes: float


class Course(NamedTuple):
    """What happened when."""

    sent: list[Sent]
    chunks: list[tuple[float, float]]
    """When each chunk of the prompt was computed."""
    first_token: float
    ended: float


def course() -> Course:
    """One request through a simulated mesh of a prefill and a decode worker."""
    model = MeshModel(link=LinkModel(bytes_per_second=_BYTES_PER_SECOND))
    request = TraceRequest(0.0, (Span(1, NUM_PROMPT_TOKENS),), 8, 2)
    routing = RoutingConfig(remote_prefill_min_tokens=1)
    simulation = Simulation([request], model, MeshSize(num_decode=1, num_prefill=1), routing)
    network = simulation.workers["prefill-0"].network
    sent: list[Sent] = []
    send = network.send

    def watched(sender: str, receiver: str, num_bytes: float, on_end: Callable[[], object]) -> Flow:
        began = simulation.clock.now

        def ended() -> None:
            sent.append(Sent(began, simulation.clock.now, num_bytes))
            on_end()

        return send(sender, receiver, num_bytes, ended)

    setattr(network, "send", watched)  # noqa: B010
    (record,) = simulation.run().records
    assert record.first_token_at is not None, "the only request is answered"
    # A chunk sends when it begins, and its last layer when it has ended.
    times = sorted({each.began for each in sent})
    chunks = list(pairwise(times))
    return Course(sorted(sent), chunks, record.first_token_at, record.ended_at)


def draw() -> str:
    """The picture."""
    found = course()
    last_kv = max(each.ended for each in found.sent)
    scale = _WIDTH / (last_kv * 1.08)

    def x(seconds: float) -> float:
        return _LEFT + seconds * scale

    drawing = Drawing(1040, 300, "Chunks are computed while the KV of earlier ones travels")
    for y, text in ((62, "prefill computes"), (132, "KV travels"), (202, "decode worker")):
        drawing.words(16, y + 24, text, bold=True)
    for number, (began, ended) in enumerate(found.chunks, 1):
        drawing.box(x(began), 62, x(ended) - x(began) - 2, 38, "amber")
        drawing.words((x(began) + x(ended)) / 2, 86, f"chunk {number}", anchor="middle", size=13)
    for each in found.sent:
        drawing.box(
            x(each.began), 132, max(2.5, x(each.ended) - x(each.began)), 38, "blue", radius=3
        )
        if each.ended - each.began > 0.02:
            middle = (x(each.began) + x(each.ended)) / 2
            drawing.words(
                middle, 156, f"{each.num_bytes / 2**20:.0f} MiB", anchor="middle", size=12
            )
    drawing.line((x(found.first_token), 48), (x(found.first_token), 240), arrow=False, dashed=True)
    drawing.words(
        x(found.first_token) - 6,
        40,
        f"first token {found.first_token * 1e3:.0f} ms",
        anchor="end",
        size=13,
    )
    drawing.box(x(0), 202, x(last_kv) - x(0), 38, "plain", dashed=True)
    drawing.words(
        x(0) + 14,
        226,
        "holds blocks for the prompt, writes KV into them as it is verified",
        size=13,
    )
    drawing.box(x(last_kv), 202, x(last_kv * 1.08) - x(last_kv), 38, "green")
    drawing.words(x(last_kv) - 60, 264, "decoding begins", size=12.5, anchor="start", colour="ink")
    exposed = last_kv - found.chunks[-1][1]
    total = sum(each.ended - each.began for each in found.sent)
    drawing.words(
        16, 288, f"Simulated: {NUM_PROMPT_TOKENS:,} tokens of the example model, a link of 48 Gbit/s. Of"
        f" {total * 1e3:.0f} ms of transfer, {exposed * 1e3:.0f} ms are not hidden behind computing.",
        size=12.5, colour="soft",
    )  # fmt: skip
    return drawing.text()
