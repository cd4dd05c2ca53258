"""Filters: whether a worker can run a request at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagemesh.router.routing.candidate import Candidate, Role, RouteRequest

Filter = Callable[[Candidate, RouteRequest], bool]


def decodes(candidate: Candidate, request: RouteRequest) -> bool:
    """It is a decode worker."""
    return candidate.role is Role.DECODE


def serves_model(candidate: Candidate, request: RouteRequest) -> bool:
    """It runs the model that was asked for."""
    return candidate.model_name == request.model_name


def is_reachable(candidate: Candidate, request: RouteRequest) -> bool:
    """Something sent to it now would arrive."""
    return candidate.reachable


def fits_context(candidate: Candidate, request: RouteRequest) -> bool:
    """Prompt and output fit into its context."""
    return request.num_total_tokens <= candidate.max_model_len


def not_tried(candidate: Candidate, request: RouteRequest) -> bool:
    """The request has not failed there."""
    return candidate.worker_id not in request.excluded_worker_ids


DECODE_FILTERS: tuple[Filter, ...] = (
    decodes,
    serves_model,
    is_reachable,
    fits_context,
    not_tried,
)
"""What every decode worker must pass, whatever the policy."""


def able(candidates: Sequence[Candidate], request: RouteRequest) -> list[Candidate]:
    """The decode workers that can run a request."""
    return [c for c in candidates if all(passes(c, request) for passes in DECODE_FILTERS)]
