"""Scores a worker by how soon it would have the first token and the KV in front of it, by the best way."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.router.routing.candidate import Candidate
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.preference import about
from pagemesh.router.routing.prefix_scorer import prefix_scores


def ttft_scores(candidates: Sequence[Candidate], outlook: Outlook) -> list[float]:
    """1 for the soonest and whoever takes about as long, 1/2 for one that takes twice as long.

    As long as nothing was measured the share of the prompt that a worker holds stands for it.
    """
    if len(candidates) < 2:
        return [1.0] * len(candidates)
    costs = [outlook.cost(candidate) for candidate in candidates]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return prefix_scores(candidates, outlook)
    limit = about(min(known))
    return [min(1.0, limit / cost) for cost in known]
