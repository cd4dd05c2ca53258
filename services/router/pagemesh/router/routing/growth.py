"""How long answers are, so that a worker is chosen that has room for one more."""

from __future__ import annotations

from typing import Final

PRIOR_LENGTH: Final = 256.0
"""Expected tokens of an answer before any has ended: about what chats have."""

MEMORY: Final = 0.98
"""What a measured length still counts when the next answer ends: about the last fifty decide."""


class AnswerLength:
    """The decayed mean of the answers that ended, as the workers' own schedulers keep it."""

    def __init__(self) -> None:
        self._mean = PRIOR_LENGTH

    def observe(self, num_tokens: int) -> None:
        """An answer ended by itself, with so many tokens."""
        self._mean = MEMORY * self._mean + (1 - MEMORY) * num_tokens

    def num_tokens(self, max_tokens: int) -> int:
        """Tokens that are to be expected of an answer that may have so many."""
        return min(round(self._mean), max_tokens)
