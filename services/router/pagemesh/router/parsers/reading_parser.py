"""A parser that is code which reads its text from beginning to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pagemesh.router.parsers.interface import ParsedPiece
from pagemesh.router.parsers.output import Output
from pagemesh.router.parsers.source import Reading, Source

_Output = TypeVar("_Output", bound=Output)


class ReadingParser:
    """Implements `AnswerParser`: the reader goes on where it was with each piece, so cuts do not matter."""

    def __init__(self, read: Callable[[Source, _Output], Reading[None]], output: _Output) -> None:
        """`read` reads to the source's end, whatever comes."""
        self._source = Source()
        self._output: Output = output
        self._reading = read(self._source, output)
        next(self._reading)

    def push(self, text: str) -> ParsedPiece:
        """What became certain with some more text."""
        if text:
            self._source.feed(text)
            next(self._reading)
        return self._output.fetch()

    def finish(self, text: str = "") -> ParsedPiece:
        """The rest, with the last of the text if there is some."""
        if text:
            self._source.feed(text)
        self._source.end()
        next(self._reading, None)
        assert self._source.is_over
        self._output.end()
        return self._output.fetch()


class ThinkingFirst:
    """Implements `AnswerParser`: what one parser takes for content, another one takes apart."""

    def __init__(self, thoughts: ReadingParser, calls: ReadingParser) -> None:
        self._thoughts = thoughts
        self._calls = calls

    def push(self, text: str) -> ParsedPiece:
        """What became certain with some more text."""
        piece = self._thoughts.push(text)
        inner = self._calls.push(piece.content)
        return ParsedPiece(inner.content, piece.reasoning, inner.tool_calls)

    def finish(self) -> ParsedPiece:
        """The rest."""
        piece = self._thoughts.finish()
        inner = self._calls.finish(piece.content)
        return ParsedPiece(inner.content, piece.reasoning, inner.tool_calls)
