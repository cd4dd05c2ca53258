"""The routing policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pagemesh.config import RoutingConfig
from pagemesh.errors import ConfigError
from pagemesh.router.routing.kv_aware import kv_aware
from pagemesh.router.routing.least_loaded import least_loaded
from pagemesh.router.routing.policy import Policy
from pagemesh.router.routing.prefix_hash import prefix_hash
from pagemesh.router.routing.round_robin import round_robin

_POLICIES: Final[Mapping[str, Callable[[Mapping[str, float]], Policy]]] = {
    "kv_aware": kv_aware,
    "prefix_hash": prefix_hash,
    "least_loaded": least_loaded,
    "round_robin": round_robin,
}


def make_policy(config: RoutingConfig) -> Policy:
    """The policy of a `--policy` value; ConfigError for one that does not exist."""
    make = _POLICIES.get(config.policy)
    if make is None:
        names = ", ".join(_POLICIES)
        raise ConfigError(f"--policy is {config.policy!r}, but must be one of {names}")
    return make(config.weights)
