"""Scores of workers, from 0 to 1: how soon they would have the first token, how busy they are, what they hold, and
whether the request's session belongs there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.picker import rendezvous
from pagemesh.router.routing.preference import about

STAY: Final = 2.0
"""Times as long as elsewhere that a prompt may take at home. Measurements of equal workers differ by less, those
of a fast and a slow accelerator by more."""


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


def away_from_home(
    costs: Sequence[float], candidates: Sequence[Candidate], outlook: Outlook
) -> list[float]:
    """The candidates' predicted seconds; more for those that hold less than the home and are no less busy.

    The home of a prompt holds most of what is the prompt's own, and has nobody in front of it. A chat's next turn
    belongs where its last answer was generated. Equal workers that are no less busy can at best be as soon, and with
    a copy of its KV; that they seem to be sooner is an error of what was measured of them. So they must be sooner by a
    factor.
    """
    own = [candidate.num_own_blocks(outlook.request) for candidate in candidates]
    loads = list(map(load_score, candidates))
    # Of what the prompt has of its own most, and of equal ones the least busy.
    home = max(
        (
            (num, load)
            for num, load, candidate in zip(own, loads, candidates, strict=True)
            if num and _has_time(candidate, outlook)
        ),
        default=(0, 0.0),
    )
    return [
        STAY * about(cost) if num < home[0] and load <= home[1] else cost
        for num, load, cost in zip(own, loads, costs, strict=True)
    ]


def _has_time(candidate: Candidate, outlook: Outlook) -> bool:
    """Whether a prompt would begin there at once."""
    if candidate.num_requests >= candidate.facts.max_num_seqs:
        return False
    seconds = outlook.queue_seconds(candidate)
    return seconds is not None and about(0) >= seconds


def load_scores(candidates: Sequence[Candidate], outlook: Outlook) -> list[float]:
    """Of each candidate, see `load_score`."""
    return [load_score(candidate) for candidate in candidates]


def load_score(candidate: Candidate) -> float:
    """1 for an idle worker, 1/2 when its batch or its cache is just full, towards 0 for an endless queue.

    A cache that is not half full is no load: what runs there is not slower for it.
    """
    facts = candidate.facts
    load = candidate.num_requests / facts.max_num_seqs
    if facts.num_blocks:
        load = max(load, 1 - 2 * candidate.num_spare_blocks / facts.num_blocks)
    return 1.0 / (1.0 + load)


def prefix_scores(candidates: Sequence[Candidate], outlook: Outlook) -> list[float]:
    """Of each candidate, see `prefix_score`."""
    return [prefix_score(candidate, outlook.request) for candidate in candidates]


def prefix_score(candidate: Candidate, request: RouteRequest) -> float:
    """Share of the prompt's tokens whose KV the worker holds, or will before it comes to this prompt."""
    return min(1.0, candidate.num_coming_tokens / request.num_prompt_tokens)


def session_scores(candidates: Sequence[Candidate], outlook: Outlook) -> list[float]:
    """1 for the worker of the request's session while its batch is not full; 0 for all others, and without one."""
    if not outlook.request.session:
        return [0.0] * len(candidates)
    home = rendezvous(candidates, outlook.request)
    has_place = home.num_requests < home.facts.max_num_seqs
    return [float(candidate is home and has_place) for candidate in candidates]
