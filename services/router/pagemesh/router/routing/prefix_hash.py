"""The policy that needs no index: equal beginnings of prompts go to one worker, unless it is too busy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.picker import Scored, rendezvous
from pagemesh.router.routing.policy import Policy

BOUND: Final = 1.25
"""Times the mean load that a worker may have: low bounds balance better, high ones move fewer prompts."""


def prefix_hash(weights: Mapping[str, float]) -> Policy:
    """Rendezvous hashing with bounded loads."""
    return Policy("prefix_hash", bounded, names_blocks=True)


def bounded(scored: Sequence[Scored], request: RouteRequest) -> Candidate:
    """The first in the prompt's order of workers that is not too busy for one more.

    No worker gets more than `BOUND` times its part of all requests, by the size of its batch. There always is
    one below that. (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2018.)
    """
    candidates = [candidate for candidate, _ in scored]
    num_requests = 1 + sum(candidate.num_requests for candidate in candidates)
    num_places = sum(candidate.facts.max_num_seqs for candidate in candidates)
    share = BOUND * num_requests / num_places
    free = [c for c in candidates if c.num_requests < math.ceil(share * c.facts.max_num_seqs)]
    return rendezvous(free, request)
