"""Makes parsers by the names that vLLM gives them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import replace

from pagemesh.router.parsers.call_object import is_whole
from pagemesh.router.parsers.formats import (
    THINKING_FORMATS,
    TOOL_FORMATS,
    find_thinking_format,
    find_tool_format,
)
from pagemesh.router.parsers.interface import AnswerParser, ParsedPiece, Span, joined_calls
from pagemesh.router.parsers.output import CallOutput
from pagemesh.router.parsers.reading_parser import CallsOrAnswer, ReadingParser, ThinkingFirst
from pagemesh.router.parsers.thinking import CLOSE


def tool_parser_names() -> tuple[str, ...]:
    """All values of `--tool-call-parser`."""
    return tuple(TOOL_FORMATS)


def reasoning_parser_names() -> tuple[str, ...]:
    """All values of `--reasoning-parser`."""
    return tuple(THINKING_FORMATS)


def parser_markers(tool_parser: str | None, reasoning_parser: str | None) -> frozenset[str]:
    """Special tokens that the text must show for these parsers, of which any model has only some.

    Raises ConfigError for a name that is not known, with those that are.
    """
    markers: frozenset[str] = frozenset()
    if tool_parser is not None:
        markers |= find_tool_format(tool_parser).markers
    if reasoning_parser is not None:
        markers |= find_thinking_format(reasoning_parser).markers
    return markers


def random_hex() -> str:
    """32 random hexadecimal digits, of which ids of tool calls are made."""
    return uuid.uuid4().hex


def make_parser(
    tool_parser: str | None,
    reasoning_parser: str | None,
    *,
    begun: bool | None = None,
    written: str = "",
    call_heads: re.Pattern[str] | None = None,
    new_hex: Callable[[], str] = random_hex,
) -> AnswerParser:
    """A parser for one choice, by names as in vLLM; None leaves tool calls or reasoning in the content.

    `begun` says what the prompt does: that it ends in reasoning (True) or behind it (False), as a chat template or
    an answer that is gone on with may have it, or None for neither. `written` is what the prompt has of the answer
    itself, in which a call may be open. `call_heads` is what calls begin with, in an answer that is only calls or
    has none. `new_hex` gives 32 hexadecimal digits for the id of each call. Raises ConfigError for a name that is
    not known, with those that are.
    """
    calls: ReadingParser | CallsOrAnswer | None = None
    call_marker = None
    if tool_parser is not None:
        tools = find_tool_format(tool_parser)
        call_marker = tools.begins_with
        calls = ReadingParser(tools.read, CallOutput(lambda: tools.call_id(new_hex())))
        if call_heads is not None:
            calls = CallsOrAnswer(calls, call_heads)
        elif written.strip() and begun is not True:
            return GoneOnWith(calls, written.rpartition(CLOSE)[2])
    if reasoning_parser is None:
        return calls or PlainParser()
    thoughts = find_thinking_format(reasoning_parser).start(begun, call_marker)
    return ThinkingFirst(thoughts, calls) if calls else thoughts


class GoneOnWith:
    """Implements `AnswerParser` behind an answer's beginning, of which only a call is told that it leaves open."""

    def __init__(self, inner: AnswerParser, written: str) -> None:
        calls = inner.push(written).tool_calls
        self._inner = inner
        self._open = tuple(call for call in calls[-1:] if not is_whole(call.arguments))
        self._num_over = len(calls) - len(self._open)
        self._num_written = len(written)

    def push(self, text: str) -> ParsedPiece:
        """What became certain with some more text, and first the call that was open."""
        return self._told(self._inner.push(text))

    def finish(self) -> ParsedPiece:
        """The rest."""
        return self._told(self._inner.finish())

    def _told(self, piece: ParsedPiece) -> ParsedPiece:
        before = self._num_written
        spans = tuple(
            Span(max(0, span.start - before), span.end - before)
            for span in piece.content_spans
            if span.end > before
        )
        piece = piece._replace(content_spans=spans)
        if not self._open and not self._num_over:
            return piece
        calls = joined_calls(self._open, piece.tool_calls)
        self._open = ()
        return piece._replace(
            tool_calls=tuple(replace(call, index=call.index - self._num_over) for call in calls)
        )


class PlainParser:
    """Implements `AnswerParser`: everything is content."""

    def __init__(self) -> None:
        self._num_chars = 0

    def push(self, text: str) -> ParsedPiece:
        """The text."""
        start = self._num_chars
        self._num_chars += len(text)
        return ParsedPiece(text, content_spans=(Span(start, self._num_chars),))

    def finish(self) -> ParsedPiece:
        """Nothing."""
        return ParsedPiece()
