"""Text that comes in pieces, for code that reads it as if all were there."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeVar

_Result = TypeVar("_Result")

Reading = Generator[None, None, _Result]
"""Reads from a source; yields where more text is needed, and goes on when there is some or will be none."""

_SPACE: Final = " \t\n\r"
"""What may stand between the parts of JSON."""


class Source:
    """What came so far and was not read yet. Nobody yields before all of it is read."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._num_fed = 0
        self.ended = False
        """Whether no more comes, as who feeds it says."""
        # What was read behind the mark: whole pieces, then from a place in the present one.
        self._kept: list[str] | None = None
        self._kept_from = 0

    def feed(self, text: str) -> None:
        """Add a piece, which is not empty, when all before it is read."""
        assert self._at == len(self._text)
        assert not self.ended
        if self._kept is not None:
            self._kept.append(self._text[self._kept_from :])
        self._kept_from = 0
        self._text, self._at = text, 0
        self._num_fed += len(text)

    @property
    def position(self) -> int:
        """How many characters are read."""
        return self._num_fed - (len(self._text) - self._at)

    @property
    def is_over(self) -> bool:
        """Whether all is read and no more comes."""
        return self.ended and self._at == len(self._text)

    def mark(self) -> None:
        """Keep what is read from here on, and forget another mark."""
        self._kept = []
        self._kept_from = self._at

    def since_mark(self) -> str:
        """What was read behind the mark, which is gone now."""
        kept, self._kept = self._kept, None
        assert kept is not None
        return "".join(kept) + self._text[self._kept_from : self._at]

    def unmark(self) -> None:
        """Forget the mark, if there is one."""
        self._kept = None

    def hand_on(self, sink: Callable[[str], None], stop: re.Pattern[str]) -> Reading[str]:
        """Read up to a character that stops and hand that on; the character, "" at the end."""
        while char := (yield from self.peek()):
            found = stop.search(self._text, self._at)
            end = len(self._text) if found is None else found.start()
            if end == self._at:
                return char
            sink(self.read(end - self._at))
        return ""

    def read(self, num_chars: int = 1) -> str:
        """Read characters of which it is known that they are there, or one."""
        first, self._at = self._at, self._at + num_chars
        return self._text[first : self._at]

    def peek(self) -> Reading[str]:
        """The next character; "" at the end. Nothing is read yet."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def match(self, *literals: str) -> Reading[str]:
        """Read one of the literals if it comes; "" when none does, and nothing is read then.

        No literal may begin with another one.
        """
        read = ""
        while read not in literals:
            char = yield from self.peek()
            if not char or not any(literal.startswith(read + char) for literal in literals):
                self._unread(read)
                return ""
            read += char
            self._at += 1
        return read

    def take(self, literal: str) -> Reading[bool]:
        """Read a literal if it comes; whether it did."""
        return bool((yield from self.match(literal)))

    def take_cut_off(self, literals: Iterable[str], min_chars: int = 1) -> bool:
        """Read the beginning of a literal where the text ends in it; whether it does."""
        num_left = len(self._text) - self._at
        is_cut_off = self.ended and any(
            min_chars <= num_left < len(literal) and literal.startswith(self._text[self._at :])
            for literal in literals
        )
        if is_cut_off:
            self._at += num_left
        return is_cut_off

    def skip_space(self) -> Reading[None]:
        """Read what JSON takes for blanks."""
        while char := (yield from self.peek()):
            if char not in _SPACE:
                return
            self._at += 1

    def _unread(self, text: str) -> None:
        """Take back what was read last, of which some may have come with earlier pieces."""
        first = self._at - len(text)
        if first >= 0:
            self._at = first
            return
        if self._kept is not None:
            self._kept = ["".join(self._kept)[:first]]
        self._text = text + self._text[self._at :]
        self._at = self._kept_from = 0
