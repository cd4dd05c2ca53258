"""How fast requests leave the queue, measured while there is one: otherwise they leave as fast as they come."""

from __future__ import annotations

from math import exp
from typing import Final

MEMORY_S: Final = 20.0
"""Seconds of queueing after which what was measured counts a third."""

MIN_S: Final = 1.0
"""Seconds of queueing before which nothing is believed."""


class DrainRate:
    """begin → note, again and again → end, when the queue is empty. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._num_seats = self._num_tokens = self._seconds = 0.0
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """The queue is not empty any more."""
        if self._since is None:
            self._since = now

    def note(self, now: float, num_seats: int, num_tokens: int) -> None:
        """A request left the queue for a worker."""
        self._pass(now)
        self._num_seats += num_seats
        self._num_tokens += num_tokens

    def end(self, now: float) -> None:
        """The queue is empty."""
        self._pass(now)
        self._since = None

    def seats_per_second(self, now: float) -> float | None:
        """Sequences that leave; None as long as too little was seen."""
        return self._per_second(self._num_seats, now)

    def tokens_per_second(self, now: float) -> float | None:
        """The tokens that they were expected to take; likewise."""
        return self._per_second(self._num_tokens, now)

    def _per_second(self, amount: float, now: float) -> float | None:
        seconds = self._seconds + (0.0 if self._since is None else now - self._since)
        return amount / seconds if amount and seconds >= MIN_S else None

    def _pass(self, now: float) -> None:
        if self._since is None:
            return
        elapsed = now - self._since
        fading = exp(-elapsed / MEMORY_S)
        self._num_seats *= fading
        self._num_tokens *= fading
        self._seconds = self._seconds * fading + elapsed
        self._since = now
