"""Scores a worker by how much of the prompt it has computed before, or is about to."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.outlook import Outlook


def prefix_scores(candidates: Sequence[Candidate], outlook: Outlook) -> list[float]:
    """Of each candidate, see `prefix_score`."""
    return [prefix_score(candidate, outlook.request) for candidate in candidates]


def prefix_score(candidate: Candidate, request: RouteRequest) -> float:
    """Share of the prompt's tokens whose KV the worker holds, or will before it comes to this prompt."""
    return min(1.0, candidate.num_coming_tokens / request.num_prompt_tokens)
