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
    """The best score; between equal ones rendezvous hashing of the prompt's first block decides.

    So requests with the same beginning meet on one worker even before it is known to hold anything; without
    a full block the smallest id decides.
    """
    best = max(entry.score for entry in scored)
    equals = [entry.candidate for entry in scored if best - entry.score <= _TIE]
    equals.sort(key=lambda candidate: candidate.worker_id)
    return max(equals, key=lambda candidate: _affinity(candidate, request))


def _affinity(candidate: Candidate, request: RouteRequest) -> bytes:
    names = request.block_names.get(candidate.facts.naming)
    if not names:
        return b""
    worker_id = candidate.worker_id.encode()
    return hashlib.blake2b(worker_id, key=names[0], digest_size=8).digest()


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
