"""Makes parsers by the names that vLLM gives them."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from pagemesh.router.parsers.formats import (
    THINKING_FORMATS,
    TOOL_FORMATS,
    find_thinking_format,
    find_tool_format,
)
from pagemesh.router.parsers.interface import AnswerParser, ParsedPiece
from pagemesh.router.parsers.output import CallOutput
from pagemesh.router.parsers.reading_parser import ReadingParser, ThinkingFirst


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
    new_hex: Callable[[], str] = random_hex,
) -> AnswerParser:
    """A parser for one choice, by names as in vLLM; None leaves tool calls or reasoning in the content.

    `begun` says what the prompt does: that it ends in reasoning (True) or behind it (False), as a chat template or
    an answer that is gone on with may have it, or None for neither. `new_hex` gives 32 hexadecimal digits for the id of each call. Raises ConfigError for a
    name that is not known, with those that are.
    """
    calls = call_marker = None
    if tool_parser is not None:
        tools = find_tool_format(tool_parser)
        call_marker = tools.begins_with
        calls = ReadingParser(tools.read, CallOutput(lambda: tools.call_id(new_hex())))
    if reasoning_parser is None:
        return calls or PlainParser()
    thoughts = find_thinking_format(reasoning_parser).start(begun, call_marker)
    return ThinkingFirst(thoughts, calls) if calls else thoughts


class PlainParser:
    """Implements `AnswerParser`: everything is content."""

    def push(self, text: str) -> ParsedPiece:
        """The text."""
        return ParsedPiece(text)

    def finish(self) -> ParsedPiece:
        """Nothing."""
        return ParsedPiece()
