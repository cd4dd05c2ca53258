"""Counts the tokens of an answer's thoughts: those between the marks, which themselves are none, as in vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pagemesh.router.parsers.formats import thought_marks
from pagemesh.tokenizer.thought_span import ThoughtMarks, ThoughtSpan


class ThoughtCounter:
    """Counts one choice's. Goes by the tokens alone, so it does not matter which of them come together."""

    def __init__(self, token_text: Callable[[int], str], marks: ThoughtMarks) -> None:
        self._token_text = token_text
        self._span = ThoughtSpan(marks)
        self._num_held_chars = marks.num_held_chars
        self._num_chars = 0
        self._num_before = 0
        # Where each token begins of which it is not certain what it belongs to.
        self._starts: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Those so far; of a mark that is not complete they are thoughts."""
        return self._num_before + self._num_thoughts(self._starts)

    def push(self, token_ids: Iterable[int]) -> None:
        """Add tokens of the answer."""
        for token_id in token_ids:
            if self._span.is_over:
                return
            text = self._token_text(token_id)
            self._starts.append(self._num_chars)
            self._num_chars += len(text)
            self._span.push(text)
            certain = self._num_chars - self._num_held_chars
            while len(self._starts) > 1 and self._starts[1] <= certain:
                self._num_before += self._num_thoughts([self._starts.pop(0)])

    def _num_thoughts(self, starts: Iterable[int]) -> int:
        begins_at, ends_at = self._span.begins_at, self._span.ends_at
        if begins_at is None:
            return 0
        return sum(begins_at <= start and (ends_at is None or start < ends_at) for start in starts)


def make_thought_counter(
    tool_parser: str | None,
    reasoning_parser: str | None,
    token_text: Callable[[int], str],
    *,
    begun: bool | None = None,
) -> ThoughtCounter | None:
    """For one choice, by what its parser is made of; None where there is none for thoughts."""
    marks = thought_marks(tool_parser, reasoning_parser, begun=begun)
    return None if marks is None else ThoughtCounter(token_text, marks)
