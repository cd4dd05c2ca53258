"""The routing policies by name: compositions of filters, weighted scorers and the picker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pagemesh.errors import ConfigError
from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.filters import able
from pagemesh.router.routing.kv_aware import KvAwarePolicy
from pagemesh.router.routing.load_scorer import load_score
from pagemesh.router.routing.picker import Scored, pick


class Policy(Protocol):
    """Chooses the decode worker of a request."""

    @property
    def uses_index(self) -> bool:
        """Whether it wants to know who holds the prompt's prefix."""
        ...

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Candidate | None:
        """The worker; None when no candidate can run the request."""
        ...


class LeastLoadedPolicy:
    """The fewest requests, relative to the batch; a baseline for comparisons."""

    uses_index = False

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Candidate | None:
        """The worker; None when no candidate can run the request."""
        return pick([Scored(c, load_score(c, request)) for c in able(candidates, request)], request)


class RoundRobinPolicy:
    """One worker after the other, in order of their ids; the baseline for comparisons."""

    uses_index = False

    def __init__(self) -> None:
        self._last_worker_id = ""

    def choose(self, candidates: Sequence[Candidate], request: RouteRequest) -> Candidate | None:
        """The worker; None when no candidate can run the request."""
        fit = sorted(able(candidates, request), key=lambda candidate: candidate.worker_id)
        if not fit:
            return None
        later = [c for c in fit if c.worker_id > self._last_worker_id]
        chosen = (later or fit)[0]
        self._last_worker_id = chosen.worker_id
        return chosen


def make_policy(name: str) -> Policy:
    """The policy of a `--policy` value."""
    match name:
        case "kv_aware":
            return KvAwarePolicy()
        case "least_loaded":
            return LeastLoadedPolicy()
        case "round_robin":
            return RoundRobinPolicy()
    raise ConfigError(f"--policy is {name!r}, but must be kv_aware, least_loaded or round_robin")
