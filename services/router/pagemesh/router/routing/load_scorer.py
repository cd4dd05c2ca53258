"""Scores a worker by how busy it is."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.router.routing.candidate import Candidate
from pagemesh.router.routing.outlook import Outlook


def load_scores(candidates: Sequence[Candidate], outlook: Outlook) -> list[float]:
    """Of each candidate, see `load_score`."""
    return [load_score(candidate) for candidate in candidates]


def load_score(candidate: Candidate) -> float:
    """1 for an idle worker, 1/2 when its batch or its cache is just full, towards 0 for an endless queue.

    A cache that is not half full is no load: what runs there is not slower for it.
    """
    facts = candidate.facts
    load = candidate.num_requests / facts.max_num_seqs
    if facts.num_blocks:
        load = max(load, 1 - 2 * candidate.num_spare_blocks / facts.num_blocks)
    return 1.0 / (1.0 + load)
