"""The routing policies by name; and the baselines among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pagemesh.config import RoutingConfig
from pagemesh.errors import ConfigError
from pagemesh.router.routing.kv_aware import kv_aware
from pagemesh.router.routing.picker import RoundRobin, pick_by_prompt
from pagemesh.router.routing.policy import Policy, Scorer
from pagemesh.router.routing.prefix_hash import prefix_hash
from pagemesh.router.routing.scorers import load_scores


def _least_loaded(weights: Mapping[str, float]) -> Policy:
    """A baseline that goes by load alone: the fewest requests, relative to the batch."""
    return Policy("least_loaded", pick_by_prompt, (Scorer("decode_load", 1.0, load_scores),))


def _round_robin(weights: Mapping[str, float]) -> Policy:
    """The baseline that knows nothing: one worker after the other."""
    return Policy("round_robin", RoundRobin())


_POLICIES: Final[Mapping[str, Callable[[Mapping[str, float]], Policy]]] = {
    "kv_aware": kv_aware,
    "prefix_hash": prefix_hash,
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
