"""Filters: whether a worker can run a request at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from pagemesh.router.routing.candidate import Candidate, Role, RouteRequest


class Filter(NamedTuple):
    """A condition that a worker must meet."""

    name: str
    """As reasons give it."""
    passes: Callable[[Candidate, RouteRequest], bool]


def decodes(candidate: Candidate, request: RouteRequest) -> bool:
    """It is a decode worker."""
    return candidate.facts.role is Role.DECODE


def serves_model(candidate: Candidate, request: RouteRequest) -> bool:
    """It runs the model that was asked for."""
    return candidate.facts.model_name == request.model_name


def is_reachable(candidate: Candidate, request: RouteRequest) -> bool:
    """Something sent to it now would arrive."""
    return candidate.reachable


def takes_requests(candidate: Candidate, request: RouteRequest) -> bool:
    """It has not said that it is about to stop."""
    return not candidate.is_draining


def fits_context(candidate: Candidate, request: RouteRequest) -> bool:
    """Prompt and output fit into its context."""
    return request.num_total_tokens <= candidate.facts.max_model_len


def not_tried(candidate: Candidate, request: RouteRequest) -> bool:
    """The request has not failed there."""
    return candidate.worker_id not in request.excluded_worker_ids


def has_room(candidate: Candidate, request: RouteRequest) -> bool:
    """Its cache has room for the prompt, beyond what is there, and for the output that is to be expected."""
    num_tokens = request.num_prompt_tokens + request.num_growth_tokens
    num_missing = candidate.num_missing_blocks(num_tokens)
    return not candidate.facts.num_blocks or num_missing <= candidate.num_spare_blocks


REQUIREMENTS: Final = (
    Filter("model", serves_model),
    Filter("reachable", is_reachable),
    Filter("draining", takes_requests),
    Filter("context", fits_context),
    Filter("tried", not_tried),
)
"""What every decode worker must meet, whatever the policy."""

PREFERENCES: Final = (Filter("capacity", has_room),)
"""What it should meet, if any of them does: where all are full, a request waits, and is not refused."""


class Sifted(NamedTuple):
    """What filters made of the candidates."""

    fit: Sequence[Candidate]
    """The decode workers that can run the request."""
    refused: Mapping[str, str]
    """The filter that each other decode worker failed first, by worker id."""


def sift(candidates: Sequence[Candidate], request: RouteRequest) -> Sifted:
    """Who can run a request, and why the others cannot."""
    fit, refused = list[Candidate](), dict[str, str]()
    for candidate in candidates:
        if not decodes(candidate, request):
            continue
        for name, passes in REQUIREMENTS:
            if not passes(candidate, request):
                refused[candidate.worker_id] = name
                break
        else:
            fit.append(candidate)
    for name, passes in PREFERENCES:
        preferred = [candidate for candidate in fit if passes(candidate, request)]
        if preferred and len(preferred) < len(fit):
            ids = {candidate.worker_id for candidate in preferred}
            refused |= {c.worker_id: name for c in fit if c.worker_id not in ids}
            fit = preferred
    return Sifted(fit, refused)
