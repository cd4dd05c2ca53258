"""The routing policies by name; and those among them that need no index."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pagemesh.config import RoutingConfig
from pagemesh.errors import ConfigError
from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.kv_aware import kv_aware
from pagemesh.router.routing.picker import RoundRobin, Scored, pick_by_prompt, rendezvous
from pagemesh.router.routing.policy import Policy, Scorer
from pagemesh.router.routing.scorers import load_scores

BOUND: Final = 1.25
"""Times the mean load that a worker may have: low bounds balance better, high ones move fewer prompts."""


def _prefix_hash(weights: Mapping[str, float]) -> Policy:
    """Equal beginnings of prompts go to one worker, unless it is too busy: rendezvous hashing with bounded loads."""
    return Policy("prefix_hash", _bounded, names_blocks=True)


def _bounded(scored: Sequence[Scored], request: RouteRequest) -> Candidate:
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


def _least_loaded(weights: Mapping[str, float]) -> Policy:
    """A baseline that goes by load alone: the fewest requests, relative to the batch."""
    return Policy("least_loaded", pick_by_prompt, (Scorer("decode_load", 1.0, load_scores),))


def _round_robin(weights: Mapping[str, float]) -> Policy:
    """The baseline that knows nothing: one worker after the other."""
    return Policy("round_robin", RoundRobin())


_POLICIES: Final[Mapping[str, Callable[[Mapping[str, float]], Policy]]] = {
    "kv_aware": kv_aware,
    "prefix_hash": _prefix_hash,
    "least_loaded": _least_loaded,
    "round_robin": _round_robin,
}


def make_policy(config: RoutingConfig) -> Policy:
    """The policy of a `--policy` value; ConfigError for one that does not exist."""
    make = _POLICIES.get(config.policy)
    if make is None:
        names = ", ".join(_POLICIES)
        raise ConfigError(f"--policy is {config.policy!r}, but must be one of {names}")
    return make(config.weights)
