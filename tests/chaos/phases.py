"""The seven phases of a request, each brought about on purpose and seen from outside before anything is done to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.kv.namespaces import Cable
from tests.chaos.asking import Client, completion
from tests.chaos.site import DECODERS, NUM_SEATS, PREFILL, ROUTERS, Place, Site
from tests.mesh.harness import until

ENTER_S: Final = 30.0
"""For a request to come into its phase."""

SENTENCE: Final = "The mesh has a router, a prefill worker, a decode worker and a kvstore. "
SHORT: Final = "Count from 1 to 100:"
LONG: Final = SENTENCE * 75
"""About 1,900 tokens: hundreds of steps of the mesh's 4 tokens."""
ENDLESS: Final = SENTENCE * 40_000
"""3 MB, which take a router a second or two to tokenize."""
THIN: Final = Cable(megabits_per_s=12, delay_ms=0)
"""Less than a prefill worker computes: its KV is still under way when it is done."""

NUM_TOKENS: Final = 120
LEAST_RECEIVED: Final = 100_000
"""Bytes of KV."""
NUM_LAST: Final = 2
"""Tokens that are missing when an answer is finishing."""


class MissedError(Exception):
    """The phase was over before it was seen."""


@dataclass(slots=True)
class Scene:
    """A request in its phase."""

    client: Client
    body: dict[str, Any]
    router: str
    """The one that has it."""
    decode: str
    """The worker that has it; any while none has."""
    crowd: ExitStack = field(default_factory=ExitStack)
    """Ends others that were asked so that this one must wait."""
    moment: Callable[[], None] = lambda: None
    """Waits until it is time."""


Phase = Callable[[Site, ExitStack], Scene]


def _require(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise MissedError(otherwise)


def _place_of(site: Site, client: Client, *, has_worker: bool = True) -> Place:
    """Where a request is, when it is with a router and, if it must, with a worker."""

    def place() -> Place | None:
        _require(not client.has_ended, "it is over already")
        found = site.place_of(client)
        return found if found and (found.decode or not has_worker) else None

    return until(place, f"the request is placed: {client.outcome}", ENTER_S) or Place("", None)


def _scene(site: Site, stack: ExitStack, body: dict[str, Any], **more: Any) -> Scene:
    """Of a request that is sent to a worker at once."""
    client = stack.enter_context(site.ask(body))
    place = _place_of(site, client)
    return Scene(client, body, place.router, place.decode or "", **more)


def queued(site: Site, stack: ExitStack) -> Scene:
    """Every place of every decode worker is taken."""
    crowd = stack.enter_context(ExitStack())
    workers = set()
    for number in range(len(DECODERS)):
        other = crowd.enter_context(site.ask(completion(f"{number} {SHORT}", 1900, n=NUM_SEATS)))
        assert other.wait_for_tokens(2 * NUM_SEATS, ENTER_S), other.outcome
        workers.add(_place_of(site, other).decode)
    _require(workers == set(DECODERS), "not all places are taken")
    body = completion(SHORT, NUM_TOKENS)
    client = stack.enter_context(site.ask(body))
    place = _place_of(site, client, has_worker=False)
    _require(not client.outcome.num_tokens, "it did not have to wait")
    return Scene(client, body, place.router, place.decode or DECODERS[0], crowd)


def tokenizing(site: Site, stack: ExitStack) -> Scene:
    """A router works at a text of some megabytes."""
    body = completion(ENDLESS, NUM_TOKENS, truncate_prompt_tokens=200)
    client = stack.enter_context(site.ask(body))
    router = until(
        lambda: next((name for name in ROUTERS if site.num_requests(name)), ""),
        "a router has the request",
        ENTER_S,
    )
    _require(site.place_of(client) is None, "it is tokenized already")
    return Scene(client, body, router, DECODERS[0])


def waiting_for_prefill(site: Site, stack: ExitStack) -> Scene:
    """Long prompts are in front of it at the prefill worker."""
    crowd = stack.enter_context(ExitStack())
    others = [crowd.enter_context(site.ask(completion(f"{n} {LONG}", 1))) for n in range(5)]
    for other in others:
        _place_of(site, other)
    scene = _scene(site, stack, completion(LONG, NUM_TOKENS), crowd=crowd)
    _require(not all(other.outcome.num_tokens for other in others), "it did not have to wait")
    return scene


def in_prefill(site: Site, stack: ExitStack) -> Scene:
    """Its prompt is being computed."""
    scene = _scene(site, stack, completion(LONG, NUM_TOKENS))
    outcome = scene.client.outcome
    until(
        lambda: site.mesh.num_used_blocks(PREFILL) or outcome.num_tokens,
        "the prompt is being prefilled",
        ENTER_S,
    )
    _require(not outcome.num_tokens, "its prompt is computed already")
    return scene


def receiving_kv(site: Site, stack: ExitStack) -> Scene:
    """KV comes slowly, over a thin link."""
    line = site.network.line(PREFILL)
    stack.callback(line.speed_up)
    line.slow_down(THIN)
    received = {name: _num_received(site, name) for name in DECODERS}
    complete = {name: _num_complete(site, name) for name in DECODERS}
    scene = _scene(site, stack, completion(LONG, NUM_TOKENS))
    until(
        lambda: _num_received(site, scene.decode) - received[scene.decode] > LEAST_RECEIVED,
        "KV arrives",
        ENTER_S,
    )
    _require(_num_complete(site, scene.decode) == complete[scene.decode], "all KV is there already")
    return scene


def _num_received(site: Site, worker: str) -> float:
    return site.mesh.metric(worker, "pagemesh:kv_bytes_received_total")


def _num_complete(site: Site, worker: str) -> float:
    return site.mesh.metric(worker, "pagemesh:remote_prefills_total", outcome="complete")


def decoding(site: Site, stack: ExitStack) -> Scene:
    """Tokens come."""
    scene = _scene(site, stack, completion(SHORT, 3 * NUM_TOKENS))
    assert scene.client.wait_for_tokens(5, ENTER_S), scene.client.outcome
    return scene


def finishing(site: Site, stack: ExitStack) -> Scene:
    """All tokens but the last ones have come."""
    scene = _scene(site, stack, completion(SHORT, 2 * NUM_TOKENS))

    def moment() -> None:
        assert scene.client.wait_for_tokens(2 * NUM_TOKENS - NUM_LAST, ENTER_S), (
            scene.client.outcome
        )

    scene.moment = moment
    return scene


PHASES: Final[dict[str, Phase]] = {
    "queued": queued,
    "tokenizing": tokenizing,
    "waiting for prefill": waiting_for_prefill,
    "in prefill": in_prefill,
    "receiving KV": receiving_kv,
    "decoding": decoding,
    "finishing": finishing,
}
