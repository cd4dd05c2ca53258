"""What was decided for a request, and why. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagemesh.router.routing.route import Route


@dataclass(frozen=True, slots=True)
class Considered:
    """What a decision made of one decode worker that could have run the request."""

    worker_id: str

    num_held_tokens: int
    """Leading tokens of the prompt that its cache was known to hold."""

    num_coming_tokens: int
    """Leading tokens that are there or are computed there for requests before this one."""

    num_requests: int
    """That run or wait there."""

    predicted_seconds: float | None
    """Until it could go on with the first token and all KV; None where that was not predicted."""

    scores: Mapping[str, float]
    """In [0, 1], by the scorer's name; empty for a policy without scorers."""

    total: float
    """The weighted sum of the scores."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a decode worker was chosen."""

    policy: str

    considered: tuple[Considered, ...]
    """The chosen worker, then the next best ones, best first; at most `MAX_CONSIDERED`."""

    num_fit: int
    """Decode workers that could have run the request."""

    refused: Mapping[str, str]
    """The filter that each other decode worker failed, by worker id."""


MAX_CONSIDERED = 8
"""Workers that reasons are given for."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request goes, and why."""

    route: Route
    reasons: Reasons

    num_available_tokens: int
    """Most leading tokens of the prompt that the cache of any one worker was known to hold; of full blocks in
    front of the last token."""

    num_captured_tokens: int
    """Most of them that the cache of a worker on the chosen way was known to hold."""
