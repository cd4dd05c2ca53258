"""How many requests a model's workers can work on at a time; what is sent beyond that only waits there.

A worker has `max_num_seqs` seats, and fewer of use when blocks are short or prompts come faster than it computes
them: then requests queue in front of seats. One that has queued for a while, or so many that it takes a while, is
full with what it has; when its queue is gone it is believed to have more again, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from pagemesh.router.routing.candidate import OwnLoad, WorkerFacts

LONG_QUEUE_S: Final = 0.5
"""Of prompts to compute: behind these, nothing more should be sent to a worker that has queued requests."""

QUEUED_S: Final = 0.3
"""Time for which a worker has had queued requests when it is full: some of its reports, so that what has just come,
and finds its seat with the next step, is no queue."""

FORGET_S: Final = 1.0
"""Time after which nobody knows what became of a queue."""

_GROWTH: Final = 1.25
"""By which seats come back, each time that they are counted."""


class Load(NamedTuple):
    """A worker, and what this router has there."""

    facts: WorkerFacts
    own: OwnLoad


class SeatCount(NamedTuple):
    """What a model's workers have together."""

    num_workers: int
    """Decode workers that take requests."""
    num_seats: int
    num_others: int
    """Requests of other routers there, as far as is known."""


@dataclass(slots=True)
class _Known:
    """A worker as it was counted before."""

    num_seats: int
    """That are of use."""
    seen_at: float
    queued_since: float | None = None
    is_full: bool = False
    """Whether more than what it has would only queue."""


class Seats:
    """Counts them. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}

    def count(self, decoders: Collection[Load], prefillers: Collection[Load]) -> SeatCount:
        """Of workers that take requests; of those that prefill, only how many wait for them matters."""
        now = self._clock()
        num_seats = sum(self._look_at(load.facts, now).num_seats for load in decoders)
        are_full = [self._look_at(load.facts, now).is_full for load in prefillers]
        if are_full and all(are_full):
            # Who is queued there has a seat on a decode worker, and makes no use of it.
            num_queued = sum(load.facts.num_queued for load in prefillers)
            num_seats = max(len(decoders), num_seats - num_queued)
        if len(self._known) > 2 * (len(decoders) + len(prefillers)):
            self._known = {k: v for k, v in self._known.items() if v.seen_at == now}
        return SeatCount(len(decoders), num_seats, sum(map(_num_others, decoders)))

    def _look_at(self, facts: WorkerFacts, now: float) -> _Known:
        known = self._known.get(facts.worker_id)
        if known is None or now - known.seen_at > FORGET_S:
            known = self._known[facts.worker_id] = _Known(facts.max_num_seqs, now)
        known.seen_at = now
        if not facts.num_queued:
            known.queued_since, known.is_full = None, False
            known.num_seats = min(facts.max_num_seqs, int(_GROWTH * known.num_seats) + 1)
            return known
        if known.queued_since is None:
            known.queued_since = now
        queue_seconds = facts.prefill_rate.queue_seconds(facts.num_pending_tokens) or 0.0
        if now - known.queued_since >= QUEUED_S or queue_seconds >= LONG_QUEUE_S:
            known.is_full = True
            known.num_seats = max(1, facts.num_running + facts.num_waiting - facts.num_queued)
        return known


def _num_others(load: Load) -> int:
    facts, own = load
    num_reported = facts.num_running + facts.num_waiting
    return max(0, num_reported - own.num_gone - (own.num_requests - own.num_unreported))
