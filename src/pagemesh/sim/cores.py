"""Cores of one machine that its engines share: with more busy ones than cores, all of them slow down alike."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

from pagemesh.sim.clock import Clock


class Cores:
    """Tells engines when what they compute is done.

    Its time is that of computing: seconds that each busy engine has had on a core since the simulation began. It
    is the clock's as long as every one of them has a core.
    """

    def __init__(self, clock: Clock, num_cores: float | None) -> None:
        """None for a core for each engine. A part of a core is one that others use for the rest of the time."""
        self._clock = clock
        self._num_cores = math.inf if num_cores is None else num_cores
        self._is_shared = num_cores is not None
        self._num_busy = 0
        self._computed = 0.0
        self._updated_at = 0.0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        # Of the wake-up that is due next, so that those that were given up are not taken for it.
        self._wake_number = 0

    @property
    def now(self) -> float:
        """Seconds of computing until now."""
        if not self._is_shared:
            return self._clock.now
        return self._computed + (self._clock.now - self._updated_at) * self._speed

    def add_busy(self, difference: int) -> None:
        """So many more engines compute from now on, or fewer."""
        if self._is_shared:
            self._update()
            self._num_busy += difference
            self._await_next()

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Have something done when so much was computed."""
        if not self._is_shared:
            self._clock.at(time, action)
            return
        entry = (time, next(self._order), action)
        heapq.heappush(self._queue, entry)
        if self._queue[0] is entry:
            self._update()
            self._await_next()

    @property
    def _speed(self) -> float:
        """Seconds of computing in a second."""
        return min(1.0, self._num_cores / max(1, self._num_busy))

    def _update(self) -> None:
        self._computed, self._updated_at = self.now, self._clock.now

    def _await_next(self) -> None:
        if self._queue:
            self._wake_number += 1
            seconds = (self._queue[0][0] - self._computed) / self._speed
            self._clock.after(seconds, lambda number=self._wake_number: self._wake(number))  # type: ignore[misc]

    def _wake(self, number: int) -> None:
        if number != self._wake_number:
            return
        time, _, action = heapq.heappop(self._queue)
        # Exactly, so that rounding errors neither add up nor leave an end just short of its time.
        self._computed, self._updated_at = time, self._clock.now
        self._await_next()
        action()
