"""What a model's answer is made of, and the contract of whoever takes it apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What became known about one tool call."""

    index: int
    """Of the call in the answer, from 0 without gaps. A call is over when the next one begins."""

    call_id: str | None
    """With the first delta of a call, None in all others."""

    name: str | None
    """The tool's, whole; with the first delta of a call, None in all others."""

    arguments: str
    """JSON text as the model wrote it; the pieces of a call's deltas together are its arguments."""


class Span(NamedTuple):
    """A part of a text, in characters."""

    start: int

    end: int


class ParsedPiece(NamedTuple):
    """What some more text turned out to be; all may be empty while it is not known yet."""

    content: str = ""

    reasoning: str = ""

    tool_calls: tuple[ToolCallDelta, ...] = ()
    """At most one for each call."""

    content_spans: tuple[Span, ...] = ()
    """Where the content stood in the text as it was pushed, in order."""


def joined_calls(
    first: tuple[ToolCallDelta, ...], second: tuple[ToolCallDelta, ...]
) -> tuple[ToolCallDelta, ...]:
    """Those of two pieces that follow each other, again at most one for each call."""
    if not first or not second or first[-1].index != second[0].index:
        return first + second
    whole = replace(first[-1], arguments=first[-1].arguments + second[0].arguments)
    return (*first[:-1], whole, *second[1:])


def joined_pieces(first: ParsedPiece, second: ParsedPiece) -> ParsedPiece:
    """Two that follow each other as one."""
    return ParsedPiece(
        first.content + second.content,
        first.reasoning + second.reasoning,
        joined_calls(first.tool_calls, second.tool_calls),
        first.content_spans + second.content_spans,
    )


class AnswerParser(Protocol):
    """Takes one choice's text apart while it comes.

    How the text is cut into pieces changes nothing in the results as a whole. No text makes it raise: what
    does not become a tool call is content, exactly as it was written.
    """

    def push(self, text: str) -> ParsedPiece:
        """What became certain with some more text. Not to be asked after `finish`."""
        ...

    def finish(self) -> ParsedPiece:
        """The rest, when no more text comes; to be asked once."""
        ...
