"""Whether to ask a kvstore that has not been answering.

A request that waits in vain loses only milliseconds, but every request would lose them: a frozen kvstore is
not told from a slow one. After a few that waited in vain, one request in each pause tries again for all.
"""

from __future__ import annotations

from collections.abc import Callable

VAIN_LOOKUPS = 3
"""Lookups in a row without an answer in time, after which there is a pause."""

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 2.0
"""Seconds between two tries: twice as long each time, and never so long that a kvstore that is back stays
unasked for long."""


class LookupBreaker:
    """Of one kvstore. `clock` gives seconds. Not thread-safe: belongs to one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_vain = 0
        self._pause = FIRST_PAUSE
        self._next_try_at = 0.0
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """Whether there is a pause."""
        return self._num_vain >= VAIN_LOOKUPS

    def may_ask(self) -> bool:
        """Whether to ask now; who may has to say what came of it."""
        if not self.is_open:
            return True
        now = self._clock()
        if now < self._next_try_at:
            return False
        # Others go without until this one's try is over, or has been given up.
        self._next_try_at = now + self._pause
        self._is_trying = True
        return True

    def on_answer(self) -> None:
        """There was an answer in time, whatever it was."""
        self._num_vain = 0
        self._pause = FIRST_PAUSE
        self._is_trying = False

    def on_silence(self) -> bool:
        """There was none; whether that begins a pause."""
        was_open = self.is_open
        self._num_vain += 1
        if was_open and not self._is_trying:
            # It was asked together with those that began the pause.
            return False
        if was_open:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._is_trying = False
        self._next_try_at = self._clock() + self._pause
        return self.is_open and not was_open
