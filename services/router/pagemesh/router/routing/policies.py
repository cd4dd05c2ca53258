"""The routing policies: compositions of filters, weighted scorers and the picker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pagemesh.errors import ConfigError
from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.filters import DECODE_FILTERS
from pagemesh.router.routing.load_scorer import load_score
from pagemesh.router.routing.picker import Scored, pick
from pagemesh.router.routing.prefix_scorer import prefix_score

Scorer = Callable[[Candidate, RouteRequest], float]
"""A number in [0, 1]; more is better."""


class Policy(Protocol):
    """Chooses the decode worker of a request."""

    @property
    def uses_index(self) -> bool:
        """Whether it wants to know who holds the prompt's prefix."""
        ...

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Candidate | None:
        """The worker; None when no candidate can run the request."""
        ...


class ScoredPolicy:
    """The best weighted sum of scores."""

    def __init__(self, weights: Sequence[tuple[Scorer, float]], *, uses_index: bool) -> None:
        self._weights = tuple(weights)
        self._uses_index = uses_index

    @property
    def uses_index(self) -> bool:
        """Whether it wants to know who holds the prompt's prefix."""
        return self._uses_index

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Candidate | None:
        """The worker; None when no candidate can run the request."""
        scored = [
            Scored(c, sum(weight * scorer(c, request) for scorer, weight in self._weights))
            for c in _able(candidates, request)
        ]
        return pick(scored, request)


class RoundRobinPolicy:
    """One worker after the other, in order of their ids; the baseline for comparisons."""

    uses_index = False

    def __init__(self) -> None:
        self._last_worker_id = ""

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Candidate | None:
        """The worker; None when no candidate can run the request."""
        able = sorted(_able(candidates, request), key=lambda candidate: candidate.worker_id)
        if not able:
            return None
        later = [c for c in able if c.worker_id > self._last_worker_id]
        chosen = (later or able)[0]
        self._last_worker_id = chosen.worker_id
        return chosen


def make_policy(name: str) -> Policy:
    """The policy of a `--policy` value."""
    match name:
        case "kv_aware":
            # A worker that holds the whole prompt loses to an idle one only when its own batch is
            # full: its load score is 1/2 then, and twice the difference is the whole prefix score.
            return ScoredPolicy([(prefix_score, 1.0), (load_score, 2.0)], uses_index=True)
        case "least_loaded":
            return ScoredPolicy([(load_score, 1.0)], uses_index=False)
        case "round_robin":
            return RoundRobinPolicy()
    raise ConfigError(f"--policy is {name!r}, but must be kv_aware, least_loaded or round_robin")


def _able(candidates: Sequence[Candidate], request: RouteRequest) -> list[Candidate]:
    return [c for c in candidates if all(passes(c, request) for passes in DECODE_FILTERS)]
