"""The policy that knows what ways there are to a prompt's KV: where it is there soon, and load."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.filters import able
from pagemesh.router.routing.load_scorer import load_score
from pagemesh.router.routing.picker import Scored, pick
from pagemesh.router.routing.prefill_plan import NOISE, NOISE_SECONDS, cost_of
from pagemesh.router.routing.prefix_scorer import prefix_score
from pagemesh.router.routing.ways import Path, Ways

LOAD_WEIGHT: Final = 2.0
"""Beside a weight of 1: a worker whose batch is full, with a load score of 1/2, loses to an idle one
whatever else speaks for it."""

MAX_HOLDERS: Final = 2
"""Of the prompt's beginning that are considered whatever their load: predicting ways takes a time that
grows with the number of all workers."""


class KvAwarePolicy:
    """The best sum of load and how soon the KV is there; of load and prefix held, before that is known."""

    uses_index = True

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Candidate | None:
        """The worker; None when no candidate can run the request."""
        fit = able(candidates, request)
        likely = _likely(fit, request)
        costs = [_least_cost(c, candidates, request) for c in likely]
        known = [cost for cost in costs if cost is not None]
        if len(known) < len(likely) or len(known) < 2:
            return likely[0] if likely else None
        # What differs by less takes equally long, and load decides, or the prompt's beginning.
        limit = max(min(known) * (1 + NOISE), min(known) + NOISE_SECONDS)
        return pick(
            [
                Scored(c, min(1.0, limit / cost) + LOAD_WEIGHT * load_score(c, request))
                for c, cost in zip(likely, known, strict=True)
            ],
            request,
        )


def _likely(fit: Sequence[Candidate], request: RouteRequest) -> list[Candidate]:
    """Who may be best: first who is by load and prefix held, then who is by load alone, then holders."""
    loads = [Scored(c, LOAD_WEIGHT * load_score(c, request)) for c in fit]
    both = [Scored(c, prefix_score(c, request) + score) for c, score in loads]
    holders = heapq.nlargest(MAX_HOLDERS, fit, key=lambda c: c.num_held_blocks)
    wanted = [pick(both, request), pick(loads, request), *(c for c in holders if c.num_held_blocks)]
    return list({c.worker_id: c for c in wanted if c is not None}.values())


def _least_cost(
    decode: Candidate, candidates: Sequence[Candidate], request: RouteRequest
) -> float | None:
    """Of the ways to the KV on this worker; None as long as nothing was measured."""
    ways = Ways(decode, candidates, request).all()
    if not request.is_prefillable:
        ways = [way for way in ways if way.path is Path.LOCAL]
    return min((cost_of(way, decode) for way in ways), default=None)
