"""One decision of the real router: who could run a request, what speaks for each, who gets it."""

from __future__ import annotations

from typing import Any, Final

from pagemesh.config import RoutingConfig
from pagemesh.core.kv import KvLayout
from pagemesh.core.load import PrefillRate
from pagemesh.router.routing.candidate import Naming, Role, RouteRequest, WorkerFacts
from pagemesh.router.routing.cost import Link
from pagemesh.router.routing.decider import Decider
from pagemesh.router.routing.decision import Considered, Decision
from pagemesh.router.routing.ways import Path
from tools.pictures.svg import Drawing

NUM_PROMPT_TOKENS: Final = 2000
_BLOCK_SIZE: Final = 16
_LAYOUT: Final = KvLayout.uniform(
    _BLOCK_SIZE, num_layers=32, num_kv_heads=8, head_dim=64, dtype="bfloat16"
)
_RATE: Final = PrefillRate(seconds_per_token=1e-4, num_tokens_per_step=2048)
_FAST: Final = Link(5e9, 0.001)
HELD: Final = {"decode-0": 100, "decode-1": 50, "decode-2": 0, "decode-3": 0}
"""Leading blocks of the prompt in each cache."""


def decision() -> Decision:
    """What the router decides about it."""
    workers = [
        _worker("decode-0", num_running=64, num_waiting=9, num_pending_tokens=6000),
        _worker("decode-1", num_running=12, num_pending_tokens=200),
        _worker("decode-2", num_running=3),
        _worker("decode-3", max_model_len=1024),
        _worker("prefill-0", role=Role.PREFILL, num_pending_tokens=3000),
    ]
    naming = Naming("f", _BLOCK_SIZE, "bfloat16")
    names = [
        number.to_bytes(16, "big") for number in range(1, NUM_PROMPT_TOKENS // _BLOCK_SIZE + 1)
    ]
    request = RouteRequest(
        model_name="demo",
        num_prompt_tokens=NUM_PROMPT_TOKENS,
        num_total_tokens=NUM_PROMPT_TOKENS + 200,
        block_names={naming: names},
        affinity={},
        excluded_worker_ids=frozenset(),
        is_prefillable=True,
    )
    found = Decider(RoutingConfig(), lambda: 0.0).decide(workers, HELD, request)
    assert found is not None, "some worker can run it"
    return found


def _worker(worker_id: str, **changes: Any) -> WorkerFacts:
    fields: dict[str, Any] = {
        "role": Role.DECODE,
        "address": f"{worker_id}:9000",
        "epoch": 1,
        "model_name": "demo",
        "model_fingerprint": "f",
        "layout": _LAYOUT,
        "block_naming": b"n",
        "max_model_len": 8192,
        "max_num_seqs": 64,
        "num_blocks": 20_000,
        "num_free_blocks": 12_000,
        "reported_at": 0.0,
        "prefill_rate": _RATE,
        "links": {sender: _FAST for sender in (*HELD, "prefill-0") if sender != worker_id},
    }
    return WorkerFacts(worker_id=worker_id, **{**fields, **changes})


def draw() -> str:
    """The picture."""
    found = decision()
    drawing = Drawing(1040, 400, "A routing decision: filters, scores, the pick")
    for x, width, text in (
        (16, 150, "1  filters"),
        (186, 600, "2  scores"),
        (806, 218, "3  the pick"),
    ):
        drawing.words(x, 32, text, bold=True, size=16)
        drawing.line((x, 42), (x + width, 42), arrow=False)
    heads = ("holds of the prompt", "requests there", "soonest, predicted", "scores", "sum")
    for x, head in zip((190, 350, 465, 610, 730), heads, strict=True):
        drawing.words(x, 64, head, size=12, colour="soft")
    by_id = {each.worker_id: each for each in found.reasons.considered}
    for row, worker_id in enumerate(HELD):
        top = 80 + 66 * row
        is_chosen = found.route.decode.worker_id == worker_id
        refused = found.reasons.refused.get(worker_id)
        colour = "green" if is_chosen else ("plain" if refused else "blue")
        drawing.box(16, top, 150, 50, colour, dashed=refused is not None)
        drawing.words(91, top + 22, worker_id, anchor="middle", bold=True)
        drawing.words(
            91, top + 40, f"refused: {refused}" if refused else "fits", anchor="middle", size=12,
        )  # fmt: skip
        if worker_id in by_id:
            _draw_scores(drawing, by_id[worker_id], top, is_chosen)
    _draw_pick(drawing, found)
    drawing.words(
        16, 386, f"A prompt of {NUM_PROMPT_TOKENS:,} tokens, asked of the router's own code. The sum weighs "
        "predicted_ttft 1, decode_load 2, session 0.25.", size=12.5, colour="soft",
    )  # fmt: skip
    return drawing.text()


def _draw_scores(drawing: Drawing, each: Considered, top: float, is_chosen: bool) -> None:
    drawing.box(190, top + 12, 130, 24, "plain", radius=3)
    share = each.num_held_tokens / NUM_PROMPT_TOKENS
    if share:
        drawing.box(190, top + 12, 130 * share, 24, "green", radius=3)
    drawing.words(255, top + 29, f"{each.num_held_tokens:,}", anchor="middle", size=12.5)
    drawing.words(393, top + 30, str(each.num_requests), anchor="middle")
    if each.predicted_seconds is not None:
        drawing.words(522, top + 30, f"{each.predicted_seconds * 1e3:.0f} ms", anchor="middle")
    for line, name in enumerate(("predicted_ttft", "decode_load")):
        text = f"{name.removeprefix('predicted_').removeprefix('decode_')} {each.scores[name]:.2f}"
        drawing.words(610, top + 20 + 18 * line, text, size=12.5)
    drawing.words(730, top + 30, f"{each.total:.2f}", bold=is_chosen, size=16)


def _draw_pick(drawing: Drawing, found: Decision) -> None:
    route = found.route
    plan = route.plan
    drawing.titled_box(806, 80, 218, 56, route.decode.worker_id, "runs the request", colour="green")
    path = Path.LOCAL if plan is None else plan.path
    helpers = [] if plan is None else [*plan.workers[:1], *filter(None, [plan.source])]
    names = " and ".join(helper.worker_id for helper in helpers)
    drawing.titled_box(
        806, 170, 218, 56, f"way: {path.value}", f"with {names}" if names else "by itself",
        colour="amber",
    )  # fmt: skip
    drawing.line((915, 136), (915, 170))
    for line, text in enumerate(
        (
            f"{found.num_available_tokens:,} tokens available",
            f"{found.num_captured_tokens:,} captured by this choice",
        )
    ):
        drawing.words(806, 262 + 20 * line, text, size=13)
