"""How the KV of a prompt comes to be on its decode worker: the cheapest way, or the rule before any is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.picker import Scored, pick_by_prompt
from pagemesh.router.routing.preference import (
    NOISE,
    cheapest,
    cost_of,
    disturbance,
    permitted,
    stays_local,
)
from pagemesh.router.routing.scorers import load_score
from pagemesh.router.routing.ways import Claim, Path, Way, Ways

DEFAULT_MIN_TOKENS: Final = 16
"""Uncached tokens from which a prompt is prefilled remotely, as long as nothing was measured."""

MAX_WORKERS: Final = 3
"""Prefill workers in a plan: the best, and whom to ask when that fails."""


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


def plan_prefill(ways: Ways, min_tokens: int | None) -> PrefillPlan:
    """The way of the least cost; with `min_tokens`, of those that the operator wants.

    Then prompts with fewer uncached tokens are local, and all others remote where there is a prefill worker.
    """
    decode, peers, predicted = ways.decode, ways.peers, ways.predicted
    if predicted and min_tokens is None:
        best = cheapest(predicted, decode)
        return _plan(best, predicted, decode, overrule_seconds=_overrule_seconds(best, decode))
    if min_tokens is None:
        min_tokens = DEFAULT_MIN_TOKENS
    wanted = permitted(ways, min_tokens)
    if wanted:
        return _plan(cheapest(wanted, decode), predicted, decode)
    if stays_local(ways, min_tokens):
        return PrefillPlan(Path.LOCAL)
    return PrefillPlan(Path.REMOTE, _by_load(peers.prefill_workers, peers.request))


def _overrule_seconds(way: Way, decode: Candidate) -> float:
    """A local prefill that takes less than this would have been chosen instead."""
    if way.path is Path.LOCAL:
        return 0.0
    return cost_of(way, decode) / (1 + NOISE) / (1 + disturbance(decode))


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
        best = pick_by_prompt([Scored(worker, load_score(worker)) for worker in left], request)
        found.append(best)
        left.remove(best)
    return tuple(found)
