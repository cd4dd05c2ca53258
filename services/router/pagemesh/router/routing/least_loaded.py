"""The policy that goes by load alone; a baseline for comparisons."""

from __future__ import annotations

from collections.abc import Mapping

from pagemesh.router.routing.picker import pick_by_prompt
from pagemesh.router.routing.policy import Policy, Scorer
from pagemesh.router.routing.scorers import load_scores


def least_loaded(weights: Mapping[str, float]) -> Policy:
    """The fewest requests, relative to the batch."""
    return Policy("least_loaded", pick_by_prompt, (Scorer("decode_load", 1.0, load_scores),))
