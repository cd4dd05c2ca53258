"""The home of a prompt: who holds most of what is the prompt's own, and has nobody in front of it.

A chat's next turn belongs where its last answer was generated. Equal workers that are no less busy can at best be
as soon, and with a copy of its KV; that they seem to be sooner is an error of what was measured of them. So they
must be sooner by a factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagemesh.router.routing.candidate import Candidate
from pagemesh.router.routing.load_scorer import load_score
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.preference import about

STAY: Final = 2.0
"""Times as long as elsewhere that a prompt may take at home. Measurements of equal workers differ by less, those
of a fast and a slow accelerator by more."""


def away_from_home(
    costs: Sequence[float], candidates: Sequence[Candidate], outlook: Outlook
) -> list[float]:
    """The candidates' predicted seconds; more for those that hold less than the home and are no less busy."""
    own = [candidate.num_own_blocks(outlook.request) for candidate in candidates]
    loads = list(map(load_score, candidates))
    # Of what the prompt has of its own most, and of equal ones the least busy.
    home = max(
        (
            (num, load)
            for num, load, candidate in zip(own, loads, candidates, strict=True)
            if num and _has_time(candidate, outlook)
        ),
        default=(0, 0.0),
    )
    return [
        STAY * about(cost) if num < home[0] and load <= home[1] else cost
        for num, load, cost in zip(own, loads, costs, strict=True)
    ]


def _has_time(candidate: Candidate, outlook: Outlook) -> bool:
    """Whether a prompt would begin there at once."""
    if candidate.num_requests >= candidate.facts.max_num_seqs:
        return False
    seconds = outlook.queue_seconds(candidate)
    return seconds is not None and about(0) >= seconds
