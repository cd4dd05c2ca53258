"""A bucket of something that is used up and comes back at a steady rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_ROUNDING: Final = 1e-9
"""Whoever waits as long as he was told must get what he was told."""


class Bucket:
    """Full at first. What is taken may be more than is there: then it is in debt until that came back."""

    def __init__(self, size: float, per_second: float, clock: Callable[[], float]) -> None:
        self.size = size
        self._per_second = per_second
        self._clock = clock
        self._level = size
        self._level_at = clock()

    @property
    def level(self) -> float:
        """What is there now; negative when in debt."""
        now = self._clock()
        self._level = min(self.size, self._level + (now - self._level_at) * self._per_second)
        self._level_at = now
        return self._level

    def seconds_until(self, amount: float) -> float:
        """Until so much can be taken, or until it is full if that is less; 0 when that is now."""
        missing = min(amount, self.size) - self.level
        return missing / self._per_second if missing > _ROUNDING * self.size else 0.0

    def take(self, amount: float) -> None:
        """Take so much, whether it is there or not; what is negative is given back."""
        self._level = min(self.size, self.level - amount)

    def resize(self, size: float, per_second: float) -> None:
        """Go on with another size and rate; what was taken stays taken."""
        level = self.level
        self._level = min(size, level + size - self.size)
        self.size, self._per_second = size, per_second
