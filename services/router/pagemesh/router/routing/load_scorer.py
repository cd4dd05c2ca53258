"""Scores a worker by how busy it is."""

from __future__ import annotations

from pagemesh.router.routing.candidate import Candidate, RouteRequest


def load_score(candidate: Candidate, request: RouteRequest) -> float:
    """1 for an idle worker, 1/2 when its batch is just full, towards 0 for an endless queue."""
    return 1.0 / (1.0 + candidate.num_requests / candidate.max_num_seqs)
