"""A routing policy: filters → scorers in [0, 1] → a picker."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pagemesh.router.routing.candidate import Candidate
from pagemesh.router.routing.decision import MAX_CONSIDERED, Considered, Reasons
from pagemesh.router.routing.filters import sift
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.picker import Picker, Scored


class Scorer(NamedTuple):
    """One aspect of the workers, and how much it counts."""

    name: str
    weight: float
    scores: Callable[[Sequence[Candidate], Outlook], Sequence[float]]
    """In [0, 1], of each of the candidates that it is given."""


Shortlist = Callable[[Sequence[Candidate], Outlook], Sequence[Candidate]]
"""Those of the able candidates that are worth scoring, at least one."""


class Choice(NamedTuple):
    """A decode worker, and why it."""

    decode: Candidate
    reasons: Reasons


def everybody(candidates: Sequence[Candidate], outlook: Outlook) -> Sequence[Candidate]:
    """A shortlist that is none."""
    return candidates


@dataclass(frozen=True, slots=True)
class Policy:
    """Chooses the decode worker of a request."""

    name: str
    picker: Picker
    scorers: tuple[Scorer, ...] = ()
    shortlist: Shortlist = everybody

    uses_index: bool = False
    """Whether it wants to know who holds the prompt's prefix."""

    names_blocks: bool = False
    """Whether it wants the names of the prompt's blocks without that."""

    def choose(self, candidates: Sequence[Candidate], outlook: Outlook) -> Choice | None:
        """The worker; None when no candidate can run the request."""
        fit, refused = sift(candidates, outlook.request)
        if not fit:
            return None
        listed = self.shortlist(fit, outlook)
        columns = [scorer.scores(listed, outlook) for scorer in self.scorers]
        totals = [0.0] * len(listed)
        for scorer, column in zip(self.scorers, columns, strict=True):
            totals = [t + scorer.weight * score for t, score in zip(totals, column, strict=True)]
        scored = list(map(Scored, listed, totals))
        decode = self.picker(scored, outlook.request)

        def consider(index: int) -> Considered:
            candidate = listed[index]
            return Considered(
                candidate.worker_id,
                candidate.num_held_tokens,
                candidate.num_coming_tokens,
                candidate.num_requests,
                outlook.seconds(candidate),
                {s.name: column[index] for s, column in zip(self.scorers, columns, strict=True)},
                totals[index],
            )

        best = heapq.nsmallest(
            MAX_CONSIDERED,
            range(len(listed)),
            key=lambda i: (listed[i] is not decode, -totals[i], listed[i].worker_id),
        )
        return Choice(decode, Reasons(self.name, tuple(map(consider, best)), len(fit), refused))
