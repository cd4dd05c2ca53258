"""The policy that knows nothing; the baseline for comparisons."""

from __future__ import annotations

from collections.abc import Mapping

from pagemesh.router.routing.picker import RoundRobin
from pagemesh.router.routing.policy import Policy


def round_robin(weights: Mapping[str, float]) -> Policy:
    """One worker after the other."""
    return Policy("round_robin", RoundRobin())
