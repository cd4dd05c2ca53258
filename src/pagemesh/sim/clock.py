"""Simulated time: a queue of things to do, each at its time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Clock:
    """Does what is due, in order of time, and of asking where times are equal."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the simulation began."""
        self.num_done = 0
        """Things that were done."""
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    def time(self) -> float:
        """The present, for those who want a function."""
        return self.now

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Have something done then, or now if that is past by a rounding error."""
        heapq.heappush(self._queue, (max(time, self.now), next(self._order), action))

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Have something done in so many seconds."""
        self.at(self.now + seconds, action)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Go on until it is over, or nothing is left to be done."""
        queue = self._queue
        while queue and not is_over():
            time, _, action = heapq.heappop(queue)
            assert time >= self.now, "time went back"
            self.now = time
            self.num_done += 1
            action()
