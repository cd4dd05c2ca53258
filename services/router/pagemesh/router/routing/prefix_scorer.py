"""Scores a worker by how much of the prompt it has computed before."""

from __future__ import annotations

from pagemesh.router.routing.candidate import Candidate, RouteRequest


def prefix_score(candidate: Candidate, request: RouteRequest) -> float:
    """Share of the prompt's tokens whose KV the worker holds."""
    num_held_tokens = candidate.num_held_blocks * candidate.layout.block_size
    return min(1.0, num_held_tokens / request.num_prompt_tokens)
