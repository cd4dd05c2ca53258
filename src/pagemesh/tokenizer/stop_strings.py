"""Finds stop strings in text that arrives in pieces, without ever giving out a part of one.

The text is read character by character with one Knuth-Morris-Pratt automaton per stop string, so the
result does not depend on how the text is cut into pieces, and the cost is linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """What became of a piece of text."""

    text: str
    """Text that can be given out."""

    stop: str | None
    """The stop string that is complete; the text before it has been given out, nothing will follow."""


class StopMatcher:
    """The stop strings of one generated sequence. The one that is complete first wins."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are non-empty strings; none at all is fine."""
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""

    def push(self, piece: str) -> StopResult:
        """Add text; holds back an end that may turn out to be the beginning of a stop string."""
        if not self._automata:
            return StopResult(piece, None)
        text = self._held + piece
        for index, char in enumerate(piece, start=len(self._held) + 1):
            # Of stop strings that end at the same place, the longest began first.
            complete = [a.stop for a in self._automata if a.feed(char)]
            if complete:
                self._held = ""
                stop = max(complete, key=len)
                return StopResult(text[: index - len(stop)], stop)
        num_certain = len(text) - max(automaton.num_matched for automaton in self._automata)
        self._held = text[num_certain:]
        return StopResult(text[:num_certain], None)

    def flush(self) -> str:
        """The text held back, when no more will come."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """Matches one stop string."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        # fallback[n]: longest proper prefix of the stop string that ends its first n characters.
        self._fallback = [0] * (len(stop) + 1)
        length = 0
        for index in range(1, len(stop)):
            length = self._advance(length, stop[index])
            self._fallback[index + 1] = length

    def feed(self, char: str) -> bool:
        """Read one character; true when the stop string ends with it."""
        self.num_matched = self._advance(self.num_matched, char)
        return self.num_matched == len(self.stop)

    def _advance(self, num_matched: int, char: str) -> int:
        while num_matched and self.stop[num_matched] != char:
            num_matched = self._fallback[num_matched]
        return num_matched + 1 if self.stop[num_matched] == char else 0
