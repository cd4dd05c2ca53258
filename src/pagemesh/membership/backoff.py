"""How long to wait before the next attempt of something that is tried forever."""

from __future__ import annotations

import random


class Backoff:
    """Waits that double from `first` to `longest` seconds, each cut by up to half at random.

    The random cut keeps the peers of a restarted kvstore from coming back at the same moment.
    """

    def __init__(self, first: float = 0.05, longest: float = 0.5) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def next_delay(self) -> float:
        """Seconds to wait now; the following wait will be twice as long."""
        delay = self._next
        self._next = min(self._longest, self._next * 2)
        return delay * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again with the shortest wait, after an attempt that worked."""
        self._next = self._first
