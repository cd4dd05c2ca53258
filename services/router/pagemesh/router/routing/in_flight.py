"""What the router's own requests keep busy, so that a burst spreads before any worker reports load."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from pagemesh.router.routing.candidate import NO_LOAD, LinkUse, OwnLoad
from pagemesh.router.routing.route import Route
from pagemesh.router.routing.ways import Claim

REPORT_LAG: Final = 0.02
"""Seconds for a request's way to a worker and a report's way back: what was sent less than this before a
report came is not in it."""

_MAX_ENDED: Final = 4096
"""Ended requests that are remembered of a worker that reports nothing."""

_MIN_SWEEP: Final = 1024
"""Workers above which those that nothing is in flight to are forgotten."""


class _Ended(NamedTuple):
    """A request that is over."""

    began_at: float
    ended_at: float


class _Busy:
    """What keeps one worker busy."""

    def __init__(self) -> None:
        self.flights: dict[Flight, float] = {}
        """When each began, in that order."""
        self.ended: deque[_Ended] = deque()
        """Since its last report that anybody asked about."""
        self.claims: dict[str | None, dict[Flight, float]] = {}
        """When claims end, by sender (None for the worker itself) and flight."""
        self._reported_at: float | None = None
        self._num_new = self._num_new_blocks = self._num_gone = 0
        """Of the flights, those that this report does not know of, and of the ended ones those that it does."""
        self._counts: OwnLoad | None = None
        """Those, as long as they do not change."""

    @property
    def is_used(self) -> bool:
        """Whether anything is in flight."""
        return bool(self.flights or self.claims)

    def begin(self, flight: Flight, now: float) -> None:
        """A request goes there."""
        self._counts = None
        self.flights[flight] = now
        self._count(flight, now, 1)

    def end(self, flight: Flight, now: float) -> None:
        """It is over there."""
        self._counts = None
        began_at = self.flights.pop(flight)
        self._count(flight, began_at, -1)
        if len(self.ended) == _MAX_ENDED:
            self._num_gone -= self._is_gone(self.ended.popleft())
        ended = _Ended(began_at, now)
        self.ended.append(ended)
        self._num_gone += self._is_gone(ended)

    def load(self, reported_at: float | None, clock: Callable[[], float]) -> OwnLoad:
        """What flights and claims keep of it, beside its last report, which came then."""
        if reported_at != self._reported_at:
            self._compare(reported_at)
        if self._counts is None:
            counts = OwnLoad(len(self.flights), self._num_new, self._num_new_blocks, self._num_gone)
            self._counts = counts
        if not self.claims:
            return self._counts
        now = clock()
        return self._counts._replace(
            queue_seconds=_left(self.claims.get(None, {}), now),
            transfers={
                sender: LinkUse(len(ends), _left(ends, now))
                for sender, ends in self.claims.items()
                if sender is not None
            },
        )

    def _compare(self, reported_at: float | None) -> None:
        self._counts = None
        self._reported_at = reported_at
        self._num_new = self._num_new_blocks = self._num_gone = 0
        if reported_at is None:
            return
        for flight in reversed(self.flights):
            if self._knows(self.flights[flight]):
                break
            self._count(flight, self.flights[flight], 1)
        while self.ended and self.ended[0].ended_at <= reported_at:
            self.ended.popleft()
        self._num_gone = sum(map(self._is_gone, self.ended))

    def _count(self, flight: Flight, began_at: float, sign: int) -> None:
        if self._reported_at is not None and not self._knows(began_at):
            self._num_new += sign
            self._num_new_blocks += sign * flight.num_blocks

    def _is_gone(self, ended: _Ended) -> bool:
        """Whether the last report has a request that is over."""
        is_over = self._reported_at is not None and ended.ended_at > self._reported_at
        return is_over and self._knows(ended.began_at)

    def _knows(self, began_at: float) -> bool:
        """Whether the last report knows of a request that began then."""
        return self._reported_at is not None and began_at <= self._reported_at - REPORT_LAG


class InFlight:
    """Requests of this router on each worker, and until when what they were predicted to need is done.

    `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._busy: dict[str, _Busy] = {}
        self._max_busy = _MIN_SWEEP

    def load(self, worker_id: str, reported_at: float | None) -> OwnLoad:
        """What requests in flight keep of one worker now, whose last report came then."""
        busy = self._busy.get(worker_id)
        return NO_LOAD if busy is None else busy.load(reported_at, self._clock)

    def begin(
        self,
        route: Route,
        num_blocks: int = 0,
        on_prefilled: Callable[[], None] | None = None,
    ) -> Flight:
        """Count a request on its workers from now on; on the decode worker it takes so many blocks.

        `on_prefilled` is called once, when its prompt has nothing more to do, or the request is over.
        """
        flight = Flight(self, route, num_blocks, on_prefilled)
        now = self._clock()
        for claim in _claims(route):
            claims = self._of(claim.worker_id).claims
            claims.setdefault(claim.sender_id, {})[flight] = now + claim.seconds
        self._of(route.decode.worker_id).begin(flight, now)
        if route.prefill is not None:
            self._of(route.prefill.worker_id).begin(flight, now)
        return flight

    def end_on(self, worker_id: str, flight: Flight) -> None:
        """A worker has nothing more to do for a flight."""
        self._busy[worker_id].end(flight, self._clock())

    def end_claims(self, flight: Flight, route: Route) -> None:
        """What the request's prompt kept busy is free."""
        for worker_id, sender_id, _ in _claims(route):
            claims = self._busy[worker_id].claims
            del claims[sender_id][flight]
            if not claims[sender_id]:
                del claims[sender_id]

    def _of(self, worker_id: str) -> _Busy:
        busy = self._busy.get(worker_id)
        if busy is None:
            if len(self._busy) >= self._max_busy:
                # Those that left, in a mesh where names are not used again.
                self._busy = {name: each for name, each in self._busy.items() if each.is_used}
                self._max_busy = max(_MIN_SWEEP, 2 * len(self._busy))
            busy = self._busy[worker_id] = _Busy()
        return busy


def _left(ends: Mapping[Flight, float], now: float) -> float:
    return max(0.0, max(ends.values(), default=0.0) - now)


def _claims(route: Route) -> Sequence[Claim]:
    return route.plan.claims if route.plan is not None else ()


class Flight:
    """One counted request; every method may be called any number of times."""

    def __init__(
        self,
        in_flight: InFlight,
        route: Route,
        num_blocks: int,
        on_prefilled: Callable[[], None] | None,
    ) -> None:
        self._in_flight = in_flight
        self._route = route
        self._on_prefilled = on_prefilled
        self._prompt_pending = True
        self._running = True
        self.num_blocks = num_blocks
        """That it takes of the decode worker."""

    def end_prefill(self) -> None:
        """The first token and all KV are there: the prefill worker has nothing more to do."""
        if self._prompt_pending:
            self._prompt_pending = False
            self._in_flight.end_claims(self, self._route)
            if self._route.prefill is not None:
                self._in_flight.end_on(self._route.prefill.worker_id, self)
            if self._on_prefilled is not None:
                self._on_prefilled()

    def end(self) -> None:
        """The request is over."""
        self.end_prefill()
        if self._running:
            self._running = False
            self._in_flight.end_on(self._route.decode.worker_id, self)
