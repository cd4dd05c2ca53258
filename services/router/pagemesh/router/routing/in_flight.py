"""What the router's own requests keep busy, so that a burst spreads before any worker reports load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pagemesh.router.routing.candidate import NO_LOAD, LinkUse, OwnLoad
from pagemesh.router.routing.route import Route
from pagemesh.router.routing.ways import Claim


class InFlight:
    """Requests of this router on each worker, and until when what they were predicted to need is done.

    `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: Counter[str] = Counter()
        # When claims end, by worker, sender (None for the worker itself) and flight.
        self._ends: dict[str, dict[str | None, dict[Flight, float]]] = {}

    def load(self, worker_id: str) -> OwnLoad:
        """What requests in flight keep of one worker now."""
        num_requests, ends = self._counts[worker_id], self._ends.get(worker_id)
        if ends is None:
            return OwnLoad(num_requests) if num_requests else NO_LOAD
        now = self._clock()
        transfers = {
            sender: LinkUse(len(each), _left(each, now))
            for sender, each in ends.items()
            if sender is not None
        }
        return OwnLoad(num_requests, _left(ends.get(None, {}), now), transfers)

    def begin(self, route: Route) -> Flight:
        """Count a request on its workers from now on."""
        flight = Flight(self, route)
        now = self._clock()
        for claim in _claims(route):
            ends = self._ends.setdefault(claim.worker_id, {}).setdefault(claim.sender_id, {})
            ends[flight] = now + claim.seconds
        self._counts[route.decode.worker_id] += 1
        if route.prefill is not None:
            self._counts[route.prefill.worker_id] += 1
        return flight

    def discount(self, worker_id: str) -> None:
        """One request less on a worker."""
        self._counts[worker_id] -= 1
        if not self._counts[worker_id]:
            del self._counts[worker_id]

    def end_claims(self, flight: Flight, route: Route) -> None:
        """What the request's prompt kept busy is free."""
        for worker_id, sender_id, _ in _claims(route):
            by_sender = self._ends[worker_id]
            del by_sender[sender_id][flight]
            if not by_sender[sender_id]:
                del by_sender[sender_id]
            if not by_sender:
                del self._ends[worker_id]


def _left(ends: Mapping[Flight, float], now: float) -> float:
    return max(0.0, max(ends.values(), default=0.0) - now)


def _claims(route: Route) -> Sequence[Claim]:
    return route.plan.claims if route.plan is not None else ()


class Flight:
    """One counted request; every method may be called any number of times."""

    def __init__(self, in_flight: InFlight, route: Route) -> None:
        self._in_flight = in_flight
        self._route = route
        self._prompt_pending = True
        self._running = True

    def end_prefill(self) -> None:
        """The first token and all KV are there: the prefill worker has nothing more to do."""
        if self._prompt_pending:
            self._prompt_pending = False
            self._in_flight.end_claims(self, self._route)
            if self._route.prefill is not None:
                self._in_flight.discount(self._route.prefill.worker_id)

    def end(self) -> None:
        """The request is over."""
        self.end_prefill()
        if self._running:
            self._running = False
            self._in_flight.discount(self._route.decode.worker_id)
