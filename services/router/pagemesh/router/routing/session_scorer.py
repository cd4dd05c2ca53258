"""Scores a worker by whether a request's session belongs there."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.router.routing.candidate import Candidate
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.picker import rendezvous


def session_scores(candidates: Sequence[Candidate], outlook: Outlook) -> list[float]:
    """1 for the worker of the request's session while its batch is not full; 0 for all others, and without one."""
    if not outlook.request.session:
        return [0.0] * len(candidates)
    home = rendezvous(candidates, outlook.request)
    has_place = home.num_requests < home.facts.max_num_seqs
    return [float(candidate is home and has_place) for candidate in candidates]
