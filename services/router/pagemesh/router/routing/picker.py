"""Pickers: choose one of the candidates, by their scores or in spite of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pagemesh.router.routing.candidate import Candidate, RouteRequest

_TIE = 1e-9
"""Scores closer than this are equal: they differ by rounding."""


class Scored(NamedTuple):
    """A worker and its weighted score."""

    candidate: Candidate
    score: float


class Picker(Protocol):
    """Chooses one of at least one."""

    def __call__(self, scored: Sequence[Scored], request: RouteRequest) -> Candidate:
        """The one."""
        ...


def pick_by_prompt(scored: Sequence[Scored], request: RouteRequest) -> Candidate:
    """The best score; between equal ones the request's session or affinity decides, by rendezvous hashing.

    So requests of a session, or with the same beginning, meet on one worker even before it is known to hold anything; without
    a full block the smallest id decides.
    """
    best = max(entry.score for entry in scored)
    return rendezvous([c for c, score in scored if best - score <= _TIE], request)


def rendezvous(candidates: Sequence[Candidate], request: RouteRequest) -> Candidate:
    """The highest random weight of the request's session, else affinity, and each worker's id; else the smallest id.

    When a worker comes or goes only the requests move that it gets or had. (Thaler and Ravishankar,
    "Using name-based mappings to increase hit rates", 1998.)
    """
    if not request.session and not request.affinity:
        return min(candidates, key=lambda candidate: candidate.worker_id)
    return max(candidates, key=lambda candidate: _weight(candidate, request))


def _weight(candidate: Candidate, request: RouteRequest) -> tuple[bytes, str]:
    worker_id = candidate.worker_id
    key = request.session or request.affinity.get(candidate.facts.naming)
    if key is None:
        return b"", worker_id
    return hashlib.blake2b(worker_id.encode(), key=key, digest_size=8).digest(), worker_id


class RoundRobin:
    """One worker after the other, in order of their ids."""

    def __init__(self) -> None:
        self._last_worker_id = ""

    def __call__(self, scored: Sequence[Scored], request: RouteRequest) -> Candidate:
        """The next one behind the one before."""
        candidates = sorted((c for c, _ in scored), key=lambda candidate: candidate.worker_id)
        later = (c for c in candidates if c.worker_id > self._last_worker_id)
        chosen = next(later, candidates[0])
        self._last_worker_id = chosen.worker_id
        return chosen
