"""Counts the router's own requests per worker, so that a burst spreads before any worker reports load."""

from __future__ import annotations

from collections import Counter

from pagemesh.router.routing.candidate import Route


class InFlight:
    """Requests of this router that run or wait on each worker."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, worker_id: str) -> int:
        """Requests in flight on one worker."""
        return self._counts[worker_id]

    def begin(self, route: Route) -> Flight:
        """Count a request on its workers from now on."""
        return Flight(self._counts, route)


class Flight:
    """One counted request; every method may be called any number of times."""

    def __init__(self, counts: Counter[str], route: Route) -> None:
        self._counts = counts
        self._decode: str | None = route.decode.worker_id
        self._prefill = route.prefill.worker_id if route.prefill is not None else None
        for worker_id in filter(None, (self._decode, self._prefill)):
            counts[worker_id] += 1

    def end_prefill(self) -> None:
        """The first token is here: the prefill worker has nothing more to do."""
        ended, self._prefill = self._prefill, None
        self._discount(ended)

    def end(self) -> None:
        """The request is over."""
        self.end_prefill()
        ended, self._decode = self._decode, None
        self._discount(ended)

    def _discount(self, worker_id: str | None) -> None:
        if worker_id is not None:
            self._counts[worker_id] -= 1
            if not self._counts[worker_id]:
                del self._counts[worker_id]
