"""How fast requests leave the queue, and how long they take on workers, as those did that ended lately."""

from __future__ import annotations

from math import exp
from typing import Final

MEMORY_S: Final = 20.0
"""Seconds of queueing after which what was measured counts a third."""

MIN_S: Final = 1.0
"""Seconds of queueing before which nothing is believed."""

RUN_MEMORY: Final = 0.98
"""What a measured time on a worker still counts when the next request ends: about the last fifty decide."""


class DrainRate:
    """Of the queue, while there is one: otherwise requests leave it as fast as they come.

    begin → note, again and again → end, when the queue is empty. Times are seconds of any one clock.
    """

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


class RunTime:
    """The time of a token, in the decayed mean over requests, their prompts' and their answers'."""

    def __init__(self) -> None:
        self._seconds = self._num_tokens = 0.0

    def note(self, seconds: float, num_tokens: int) -> None:
        """A request that was expected to take so many tokens took so long."""
        self._seconds = RUN_MEMORY * self._seconds + seconds
        self._num_tokens = RUN_MEMORY * self._num_tokens + num_tokens

    def note_cut_off(self, seconds: float, num_tokens: int) -> None:
        """Likewise, but it was ended before it was over: it would have taken at least so long.

        Without these, only those count that are fast enough, when workers get too slow for the rest.
        """
        if seconds > self.seconds(num_tokens):
            self.note(seconds, num_tokens)

    def seconds(self, num_tokens: int) -> float:
        """For a request that is expected to take so many; 0 as long as nothing is known."""
        return self._seconds / self._num_tokens * num_tokens if self._num_tokens else 0.0
