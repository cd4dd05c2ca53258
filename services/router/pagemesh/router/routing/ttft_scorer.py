"""Scores a worker by how soon it would have the first token and the KV in front of it, by the best way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagemesh.router.routing.candidate import Candidate
from pagemesh.router.routing.home import away_from_home
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
    return _scores_of(away_from_home(known, candidates, outlook))


def _scores_of(costs: Sequence[float]) -> list[float]:
    # Of whatever rates were reported: what cannot be compared comes last, and no time at all is no division.
    costs = [math.inf if math.isnan(cost) else cost for cost in costs]
    limit = about(min(costs))
    return [1.0 if cost <= limit else limit / cost for cost in costs]
