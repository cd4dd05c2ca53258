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


def fits_context(candidate: Candidate, request: RouteRequest) -> bool:
    """Prompt and output fit into its context."""
    return request.num_total_tokens <= candidate.facts.max_model_len


def not_tried(candidate: Candidate, request: RouteRequest) -> bool:
    """The request has not failed there."""
    return candidate.worker_id not in request.excluded_worker_ids


REQUIREMENTS: Final = (
    Filter("model", serves_model),
    Filter("reachable", is_reachable),
    Filter("context", fits_context),
    Filter("tried", not_tried),
)
"""What every decode worker must meet, whatever the policy."""


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
    return Sifted(fit, refused)
