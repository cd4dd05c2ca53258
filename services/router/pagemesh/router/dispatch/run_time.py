"""How long requests take on workers, as those did that ended lately."""

from __future__ import annotations

from typing import Final

MEMORY: Final = 0.98
"""What a measured time still counts when the next request ends: about the last fifty decide."""


class RunTime:
    """The time of a token, in the decayed mean over requests, their prompts' and their answers'."""

    def __init__(self) -> None:
        self._seconds = self._num_tokens = 0.0

    def note(self, seconds: float, num_tokens: int) -> None:
        """A request that was expected to take so many tokens took so long."""
        self._seconds = MEMORY * self._seconds + seconds
        self._num_tokens = MEMORY * self._num_tokens + num_tokens

    def note_cut_off(self, seconds: float, num_tokens: int) -> None:
        """Likewise, but it was ended before it was over: it would have taken at least so long.

        Without these, only those count that are fast enough, when workers get too slow for the rest.
        """
        if seconds > self.seconds(num_tokens):
            self.note(seconds, num_tokens)

    def seconds(self, num_tokens: int) -> float:
        """For a request that is expected to take so many; 0 as long as nothing is known."""
        return self._seconds / self._num_tokens * num_tokens if self._num_tokens else 0.0
