"""Whether a prompt is prefilled on its decode worker or on a prefill worker, and on which."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.router.routing.candidate import Candidate, Role, RouteRequest
from pagemesh.router.routing.load_scorer import load_score
from pagemesh.router.routing.picker import Scored, pick


def plan_prefill(
    decode: Candidate,
    candidates: Sequence[Candidate],
    request: RouteRequest,
    remote_prefill_min_tokens: int,
) -> Candidate | None:
    """The least loaded prefill worker whose KV `decode` can take; None for a local prefill.

    Local when nobody matches, or when so few tokens are not cached that shipping KV would cost more.
    """
    num_held_tokens = decode.num_held_blocks * decode.layout.block_size
    if request.num_prompt_tokens - num_held_tokens < remote_prefill_min_tokens:
        return None
    scored = [
        Scored(candidate, load_score(candidate, request))
        for candidate in candidates
        if candidate.role is Role.PREFILL and candidate.reachable and _matches(candidate, decode)
    ]
    return pick(scored, request)


def _matches(prefill: Candidate, decode: Candidate) -> bool:
    return prefill.model_fingerprint == decode.model_fingerprint and prefill.layout == decode.layout
