"""Picks one worker of those with the best score."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from pagemesh.router.routing.candidate import Candidate, RouteRequest

_TIE = 1e-9
"""Scores closer than this are equal: they differ by rounding."""


class Scored(NamedTuple):
    """A worker and its weighted score."""

    candidate: Candidate
    score: float


def pick(scored: Sequence[Scored], request: RouteRequest) -> Candidate | None:
    """The best worker; None when there is none.

    Between equal ones rendezvous hashing of the prompt's first block decides, so that requests with
    the same beginning meet on one worker even before it is known to hold anything; without a full
    block, the smallest id.
    """
    if not scored:
        return None
    best = max(entry.score for entry in scored)
    equals = [entry.candidate for entry in scored if best - entry.score <= _TIE]
    equals.sort(key=lambda candidate: candidate.worker_id)
    if not request.first_block_hash:
        return equals[0]
    return max(equals, key=lambda candidate: _affinity(candidate, request.first_block_hash))


def _affinity(candidate: Candidate, block_hash: bytes) -> bytes:
    return hashlib.blake2b(candidate.worker_id.encode(), key=block_hash, digest_size=8).digest()
