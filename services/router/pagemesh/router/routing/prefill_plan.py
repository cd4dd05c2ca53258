"""How the KV of a prompt comes to be on its decode worker: the cheapest way, or the rule before any is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.load_scorer import load_score
from pagemesh.router.routing.picker import Scored, pick
from pagemesh.router.routing.ways import Claim, Path, Way, Ways

DEFAULT_MIN_TOKENS: Final = 16
"""Uncached tokens from which a prompt is prefilled remotely, as long as nothing was measured."""

MAX_WORKERS: Final = 3
"""Prefill workers in a plan: the best, and whom to ask when that fails."""

NOISE: Final = 0.05
NOISE_SECONDS: Final = 0.001
"""Ways that differ by less than one of these take equally long: predictions are not better than that."""

DISTURBANCE: Final = 1 / 16
"""What a second of computing on the decode worker costs beside itself for each request that runs there,
whose next tokens it delays; at most another second. So a request never waits more than twice as long, for
the sake of the others, as it would have to."""


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """The decision."""

    path: Path

    workers: tuple[Candidate, ...] = ()
    """Prefill workers, best first; none for PULL and LOCAL."""

    source: Candidate | None = None
    """Whose cache is pulled from."""

    predicted_seconds: float = 0.0
    """Until the decode worker can go on by itself; 0 when nothing was measured."""

    overrule_seconds: float = 0.0
    """The decode worker computes the prompt itself if that takes less; 0 forbids it."""

    predictions: Mapping[Path, float] = field(default_factory=dict)
    """Seconds of the best way of each kind that there was."""

    claims: tuple[Claim, ...] = ()
    """What it keeps busy."""


def plan_prefill(
    decode: Candidate,
    candidates: Sequence[Candidate],
    request: RouteRequest,
    min_tokens: int | None,
) -> PrefillPlan:
    """The way of the least cost; with `min_tokens`, of those that the operator wants.

    Then prompts with fewer uncached tokens are local, and all others remote where there is a prefill worker.
    """
    ways = Ways(decode, candidates, request)
    predicted = ways.all()
    num_uncached = request.num_prompt_tokens - decode.num_held_blocks * decode.layout.block_size
    if predicted and min_tokens is None:
        best = cheapest(predicted, decode)
        return _plan(best, predicted, decode, overrule_seconds=_overrule_seconds(best, decode))
    if min_tokens is None:
        min_tokens = DEFAULT_MIN_TOKENS
    if num_uncached < min_tokens or not ways.prefill_workers:
        wanted = [way for way in predicted if way.path is Path.LOCAL]
        return _plan(wanted[0], predicted, decode) if wanted else PrefillPlan(Path.LOCAL)
    wanted = [way for way in predicted if way.prefill is not None]
    if wanted:
        return _plan(cheapest(wanted, decode), predicted, decode)
    return PrefillPlan(Path.REMOTE, _by_load(ways.prefill_workers, request))


def cheapest(ways: Sequence[Way], decode: Candidate) -> Way:
    """Of the ways that take about as long as the best one, that which loads decode workers least."""
    least = min(cost_of(way, decode) for way in ways)
    limit = max(least * (1 + NOISE), least + NOISE_SECONDS)
    order = list(Path)
    return min(
        (way for way in ways if cost_of(way, decode) <= limit),
        key=lambda way: (order.index(way.path), way.forecast.seconds),
    )


def cost_of(way: Way, decode: Candidate) -> float:
    """Seconds of the request itself, and those that it costs the ones that run on the decode worker."""
    return way.forecast.seconds + _disturbance(decode) * way.forecast.decode_seconds


def _disturbance(decode: Candidate) -> float:
    return min(1.0, DISTURBANCE * decode.num_running)


def _overrule_seconds(way: Way, decode: Candidate) -> float:
    """A local prefill that takes less than this would have been chosen instead."""
    if way.path is Path.LOCAL:
        return 0.0
    return cost_of(way, decode) / (1 + NOISE) / (1 + _disturbance(decode))


def _plan(
    way: Way, predicted: Sequence[Way], decode: Candidate, overrule_seconds: float = 0.0
) -> PrefillPlan:
    predictions: dict[Path, float] = {}
    for other in predicted:
        seconds = other.forecast.seconds
        predictions[other.path] = min(seconds, predictions.get(other.path, seconds))
    return PrefillPlan(
        way.path,
        () if way.prefill is None else _with_substitutes(way.prefill, predicted),
        way.source,
        way.forecast.seconds,
        overrule_seconds,
        predictions,
        tuple(way.claims(decode)),
    )


def _with_substitutes(first: Candidate, predicted: Sequence[Way]) -> tuple[Candidate, ...]:
    others = [way for way in predicted if way.path is Path.REMOTE and way.prefill is not first]
    others.sort(key=lambda way: way.forecast.seconds)
    substitutes = [way.prefill for way in others if way.prefill is not None]
    return (first, *substitutes)[:MAX_WORKERS]


def _by_load(workers: Sequence[Candidate], request: RouteRequest) -> tuple[Candidate, ...]:
    """The least loaded, each picked like a decode worker."""
    left, found = list(workers), list[Candidate]()
    while left and len(found) < MAX_WORKERS:
        best = pick([Scored(worker, load_score(worker, request)) for worker in left], request)
        assert best is not None, "there is one left"
        found.append(best)
        left.remove(best)
    return tuple(found)
