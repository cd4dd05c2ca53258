"""Counts the tokens of an answer's thoughts: those between the marks, which themselves are none, as in vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pagemesh.router.parsers.formats import find_thinking_format, find_tool_format
from pagemesh.router.parsers.thinking import CLOSE, OPEN

_SPACE: Final = " \t\n\r"


class ThoughtCounter:
    """Counts one choice's. Goes by the tokens alone, so it does not matter which of them come together."""

    def __init__(
        self, token_text: Callable[[int], str], thinking: bool | None, ends: Sequence[str]
    ) -> None:
        """`thinking` says whether the answer begins with thoughts, None that it says so itself; `ends` end them."""
        self._token_text = token_text
        self._thinks = bool(thinking)
        self._ends = ends
        self._num_chars = max(map(len, ends)) - 1
        self._is_beginning = True
        self._is_over = thinking is False
        self._num_before = 0
        # Text in which a mark may have begun, and where each of its tokens begins.
        self._text = ""
        self._starts: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Those so far; of a mark that is not complete they are thoughts."""
        return self._num_before + (len(self._starts) if self._thinks else 0)

    def push(self, token_ids: Iterable[int]) -> None:
        """Add tokens of the answer."""
        for token_id in token_ids:
            if self._is_over:
                return
            self._starts.append(len(self._text))
            self._text += self._token_text(token_id)
            if self._is_beginning:
                self._read_beginning()
            if not self._is_beginning and not self._is_over:
                self._look_for_end()

    def _read_beginning(self) -> None:
        text = self._text.lstrip(_SPACE)
        marks = (OPEN, CLOSE) if self._thinks else (OPEN,)
        if any(len(text) < len(mark) and mark.startswith(text) for mark in marks):
            return
        self._is_beginning = False
        if text.startswith(OPEN):
            self._thinks = True
            self._forget(len(self._text) - len(text) + len(OPEN))
        elif not self._thinks or text.startswith(CLOSE):
            self._end(0)

    def _look_for_end(self) -> None:
        found = [at for at in map(self._text.find, self._ends) if at >= 0]
        if found:
            self._end(min(found))
            return
        while len(self._starts) > 1 and self._starts[1] <= len(self._text) - self._num_chars:
            self._num_before += 1
            self._forget(self._starts[1])

    def _end(self, at: int) -> None:
        """Tokens that begin before this place are the last ones of the thoughts."""
        self._num_before += sum(start < at for start in self._starts)
        self._starts = []
        self._is_over = True

    def _forget(self, num_chars: int) -> None:
        """Leave out the text's beginning, and tokens that begin in it."""
        self._text = self._text[num_chars:]
        self._starts = [start - num_chars for start in self._starts if start >= num_chars]


def make_thought_counter(
    tool_parser: str | None,
    reasoning_parser: str | None,
    token_text: Callable[[int], str],
    *,
    begun: bool | None = None,
) -> ThoughtCounter | None:
    """For one choice, by what its parser is made of; None where there is none for thoughts."""
    if reasoning_parser is None:
        return None
    thoughts = find_thinking_format(reasoning_parser)
    call_marker = None if tool_parser is None else find_tool_format(tool_parser).begins_with
    return ThoughtCounter(token_text, thoughts.begins_thinking(begun), thoughts.ends(call_marker))
