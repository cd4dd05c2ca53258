"""Reasoning between `<think>` and `</think>`, of which a chat template may have written the first."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

from pagemesh.router.parsers.content import read_until
from pagemesh.router.parsers.output import ThoughtOutput
from pagemesh.router.parsers.reading_parser import ReadingParser
from pagemesh.router.parsers.source import Reading, Source
from pagemesh.tokenizer.thought_span import ThoughtMarks

OPEN: Final = "<think>"
CLOSE: Final = "</think>"

_NOTHING: Final = re.compile(r"(?!)")
"""Matches nowhere."""


@dataclass(frozen=True, slots=True)
class ThinkingFormat:
    """How answers are read that begin with reasoning."""

    always_thinks: bool
    """Whether an answer is reasoning from its beginning, even when neither it nor its prompt says so."""

    has_calls: bool = False
    """Whether a tool call ends the reasoning, too."""

    markers: frozenset[str] = frozenset({OPEN, CLOSE})
    """Special tokens among its text."""

    def begins_thinking(self, begun: bool | None) -> bool | None:
        """Whether an answer begins with reasoning; None when it says so itself.

        `begun` is what its prompt says: that it ends in reasoning or behind it, or None for neither.
        """
        return True if begun is None and self.always_thinks else begun

    def is_left_open(self, text: str, *, begun: bool | None) -> bool | None:
        """What `begun` is behind the first text of an answer, when it was this before."""
        rest = text.lstrip()
        if not rest:
            return begun
        if rest.startswith(OPEN):
            begun, rest = True, rest.removeprefix(OPEN)
        thinks = self.begins_thinking(begun)
        # An answer that says nothing of thoughts in its beginning has none.
        return bool(thinks) and not any(end in rest for end in self.ends(None))

    def ends(self, call_marker: str | None) -> tuple[str, ...]:
        """What ends the reasoning, where calls begin with a marker."""
        return (CLOSE, call_marker) if self.has_calls and call_marker else (CLOSE,)

    def marks(self, begun: bool | None, call_marker: str | None) -> ThoughtMarks:
        """What is around the thoughts of an answer, in which calls begin with a marker."""
        return ThoughtMarks(OPEN, self.ends(call_marker), self.begins_thinking(begun))

    def start(self, begun: bool | None, call_marker: str | None) -> ReadingParser:
        """A parser for an answer, in which calls begin with a marker; `begun` as above."""
        read = functools.partial(
            _read, thinking=self.begins_thinking(begun), ends=self.ends(call_marker)
        )
        return ReadingParser(read, ThoughtOutput())


DEEPSEEK_R1: Final = ThinkingFormat(always_thinks=True)
"""DeepSeek R1, QwQ and other models that always think."""

QWEN3: Final = ThinkingFormat(always_thinks=False, has_calls=True)
"""Qwen 3, which says whether it thinks, and sometimes calls tools in the middle of its thoughts."""


def thoughts_begun(text: str) -> bool | None:
    """Whether a text ends in reasoning, or behind it; None when it has neither mark."""
    opened, closed = text.rfind(OPEN), text.rfind(CLOSE)
    return None if opened == closed else opened > closed


def _read(
    source: Source, output: ThoughtOutput, thinking: bool | None, ends: tuple[str, ...]
) -> Reading[None]:
    if thinking is not False:
        thinking = yield from _read_beginning(source, output, bool(thinking))
    if thinking:
        end = yield from read_until(source, output.reasoning, ends)
        if end != CLOSE:
            output.content(end)
    yield from source.hand_on(output.content, _NOTHING)


def _read_beginning(source: Source, output: ThoughtOutput, thinking: bool) -> Reading[bool]:
    """Read a tag at the answer's beginning; whether what follows is reasoning."""
    source.mark()
    yield from source.skip_space()
    marker = yield from source.match(*((OPEN, CLOSE) if thinking else (OPEN,)))
    text = source.since_mark()
    if marker == OPEN:
        return True
    if marker == CLOSE:
        return False
    (output.reasoning if thinking else output.content)(text)
    return thinking
