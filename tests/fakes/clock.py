"""A clock that stands still until it is moved."""

from __future__ import annotations


class FakeClock:
    """Called, it gives seconds since an arbitrary start, like time.monotonic."""

    def __init__(self) -> None:
        self._now = 1000.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
