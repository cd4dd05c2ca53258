"""Finds where the thoughts of an answer begin and end, in text that arrives in pieces."""

from __future__ import annotations

from typing import Final, NamedTuple

_SPACE: Final = " \t\n\r"


class ThoughtMarks(NamedTuple):
    """How an answer's thoughts are marked."""

    opening: str
    """Only at the beginning of an answer does it begin thoughts."""

    ends: tuple[str, ...]
    """What ends them: the closing mark first, which is no part of what follows, as the others are."""

    thinking: bool | None
    """Whether the answer begins in thoughts; None when it says so itself."""

    @property
    def closing(self) -> str:
        """Between the thoughts and the answer."""
        return self.ends[0]

    @property
    def num_held_chars(self) -> int:
        """Most characters of which it is not known yet whether they are the beginning of an end."""
        return max(map(len, self.ends)) - 1


class SplitText(NamedTuple):
    """A text in two, marks included; one that may be a mark at the answer's beginning comes later."""

    thoughts: str
    answer: str


class ThoughtSpan:
    """The thoughts of one answer. What it is told does not depend on how the text is cut into pieces."""

    def __init__(self, marks: ThoughtMarks) -> None:
        self._marks = marks
        self._held = ""
        """The beginning, as long as it may be a mark; later the last characters of the thoughts."""
        self._is_beginning = True
        self._num_chars = 0
        self.begins_at = 0 if marks.thinking else None
        """Place in the text of the first character of thoughts; None when there are none yet."""
        self.ends_at: int | None = None
        """Place of the first character behind them; None until it is known."""
        self.is_over = marks.thinking is False
        """Whether no more thoughts come."""

    def push(self, text: str) -> SplitText:
        """Add text; which part of it, and of what was held back, is thoughts, and which the answer."""
        if self.is_over:
            return SplitText("", text)
        if self._is_beginning:
            return self._read_beginning(self._held + text)
        return self._look_for_end("", text)

    def flush(self) -> str:
        """What is held back of an answer whose beginning was cut off."""
        held, self._held = self._held if self._is_beginning else "", ""
        return held

    def _read_beginning(self, text: str) -> SplitText:
        rest = text.lstrip(_SPACE)
        opening, closing, thinks = self._marks.opening, self._marks.closing, self._marks.thinking
        marks = (opening, closing) if thinks else (opening,)
        if any(len(rest) < len(mark) and mark.startswith(rest) for mark in marks):
            self._held = text
            return SplitText("", "")
        self._held, self._is_beginning = "", False
        if rest.startswith(opening):
            self.begins_at = self._num_chars = len(text) - len(rest) + len(opening)
            return self._look_for_end(text[: self.begins_at], text[self.begins_at :])
        if not thinks:
            self.is_over = True
            return SplitText("", text)
        if rest.startswith(closing):
            # Blanks alone are no thoughts.
            self.ends_at, self.is_over = 0, True
            answer = rest.removeprefix(closing)
            return SplitText(text.removesuffix(answer) if answer else text, answer)
        return self._look_for_end("", text)

    def _look_for_end(self, before: str, text: str) -> SplitText:
        seen = self._held + text
        found = [(at, end) for end in self._marks.ends if (at := seen.find(end)) >= 0]
        first, num_held = self._num_chars - len(self._held), len(self._held)
        self._num_chars += len(text)
        if not found:
            keep = self._marks.num_held_chars
            self._held = seen[max(0, len(seen) - keep) :]
            return SplitText(before + text, "")
        at, end = min(found)
        self.ends_at, self.is_over = first + at, True
        behind = at + len(end) if end == self._marks.closing else at
        # Of an end that is the answer's own beginning, some may have been told as thoughts.
        cut = max(0, behind - num_held)
        return SplitText(before + text[:cut], text[cut:])
