"""Filters: whether a worker can run a request at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from pagemesh.router.routing.candidate import Candidate, Role, RouteRequest


class Filter(NamedTuple):
    """A condition that workers must meet. Of all at once: a mesh may have thousands, and every request asks."""

    name: str
    """As reasons give it."""
    kept: Callable[[Sequence[Candidate], RouteRequest], Sequence[Candidate]]
    """Those that meet it."""


def serving_model(candidates: Sequence[Candidate], request: RouteRequest) -> Sequence[Candidate]:
    """Those that run the model that was asked for."""
    return [c for c in candidates if c.facts.model_name == request.model_name]


def reachable(candidates: Sequence[Candidate], request: RouteRequest) -> Sequence[Candidate]:
    """Those at which something sent now would arrive."""
    return [c for c in candidates if c.reachable]


def taking_requests(candidates: Sequence[Candidate], request: RouteRequest) -> Sequence[Candidate]:
    """Those that have not said that they are about to stop."""
    return [c for c in candidates if not c.is_draining]


def fitting_context(candidates: Sequence[Candidate], request: RouteRequest) -> Sequence[Candidate]:
    """Those into whose context prompt and output fit."""
    num_tokens = request.num_total_tokens
    return [c for c in candidates if num_tokens <= c.facts.max_model_len]


def not_tried(candidates: Sequence[Candidate], request: RouteRequest) -> Sequence[Candidate]:
    """Those on which the request has not failed."""
    tried = request.excluded_worker_ids
    return [c for c in candidates if c.facts.worker_id not in tried] if tried else candidates


def same_weights(candidates: Sequence[Candidate], request: RouteRequest) -> Sequence[Candidate]:
    """Those whose model is the one that has answered a part of the request."""
    fingerprint = request.model_fingerprint
    if fingerprint is None:
        return candidates
    return [c for c in candidates if c.facts.model_fingerprint == fingerprint]


def same_arithmetic(candidates: Sequence[Candidate], request: RouteRequest) -> Sequence[Candidate]:
    """Those that compute as the worker did that made the answer's tokens until now."""
    arithmetic = request.arithmetic
    if arithmetic is None:
        return candidates
    return [c for c in candidates if c.facts.arithmetic == arithmetic]


def having_room(candidates: Sequence[Candidate], request: RouteRequest) -> Sequence[Candidate]:
    """Those whose cache has room for the prompt, beyond what is there, and for the output to be expected."""
    num_tokens = request.num_prompt_tokens + request.num_growth_tokens
    return [
        c
        for c in candidates
        if not c.facts.num_blocks or c.num_missing_blocks(num_tokens) <= c.num_spare_blocks
    ]


REQUIREMENTS: Final = (
    Filter("model", serving_model),
    Filter("reachable", reachable),
    Filter("draining", taking_requests),
    Filter("context", fitting_context),
    Filter("tried", not_tried),
    Filter("weights", same_weights),
)
"""What every decode worker must meet, whatever the policy."""

PREFERENCES: Final = (Filter("arithmetic", same_arithmetic), Filter("capacity", having_room))
"""What it should meet, if any of them does, in this order: where all are full, a request waits, and is not refused.
An answer waits rather for a worker of its arithmetic than it goes on with another one."""


class Sifted(NamedTuple):
    """What filters made of the candidates."""

    fit: Sequence[Candidate]
    """The decode workers that can run the request."""
    refused: Mapping[str, str]
    """The filter that each other decode worker failed first, by worker id."""


def sift(candidates: Sequence[Candidate], request: RouteRequest) -> Sifted:
    """Who can run a request, and why the others cannot."""
    fit: Sequence[Candidate] = [c for c in candidates if c.facts.role is Role.DECODE]
    refused = dict[str, str]()
    for name, kept in REQUIREMENTS:
        fit = _without(fit, kept(fit, request), name, refused)
    for name, kept in PREFERENCES:
        fit = _without(fit, kept(fit, request) or fit, name, refused)
    return Sifted(fit, refused)


def _without(
    candidates: Sequence[Candidate],
    kept: Sequence[Candidate],
    name: str,
    refused: dict[str, str],
) -> Sequence[Candidate]:
    """Those that are kept; which filter refused the others is noted."""
    if len(kept) < len(candidates):
        ids = {candidate.worker_id for candidate in kept}
        refused |= {c.worker_id: name for c in candidates if c.worker_id not in ids}
    return kept
