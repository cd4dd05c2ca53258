"""A parser that is code which reads its text from beginning to end."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pagemesh.router.parsers.interface import ParsedPiece, Span, joined_pieces
from pagemesh.router.parsers.output import Output
from pagemesh.router.parsers.source import Reading, Source

_Output = TypeVar("_Output", bound=Output)


class ReadingParser:
    """Implements `AnswerParser`: the reader goes on where it was with each piece, so cuts do not matter."""

    def __init__(self, read: Callable[[Source, _Output], Reading[None]], output: _Output) -> None:
        """`read` reads to the source's end, whatever comes."""
        self._source = Source()
        self._output: Output = output
        output.follow(self._source)
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
        self._source.ended = True
        next(self._reading, None)
        assert self._source.is_over
        self._output.end()
        return self._output.fetch()


class CallsOrAnswer:
    """Takes apart what is either calls or an answer in a form, in which nothing is a call."""

    def __init__(self, calls: ReadingParser, heads: re.Pattern[str]) -> None:
        """`calls` reads the calls, which begin with one of `heads`."""
        self._calls = calls
        self._heads = heads
        # Of what is not known yet what it is.
        self._held = ""
        self._is_call: bool | None = None
        # Of the answer.
        self._num_chars = 0

    def push(self, text: str) -> ParsedPiece:
        """What became certain with some more text."""
        if self._is_call is not None:
            return self._calls.push(text) if self._is_call else self._answer(text)
        for position, char in enumerate(text):
            # Whichever comes first in a piece: of one character, it is only one of the two.
            self._held += char
            piece = self._calls.push(char)
            if piece.tool_calls and self._heads.match(self._held.lstrip()):
                self._is_call = True
                return joined_pieces(piece, self._calls.push(text[position + 1 :]))
            if piece.tool_calls or piece.content:
                self._is_call = False
                return self._answer(self._held + text[position + 1 :])
        return ParsedPiece()

    def finish(self, text: str = "") -> ParsedPiece:
        """The rest, with the last of the text if there is some."""
        piece = self.push(text)
        if self._is_call:
            return joined_pieces(piece, self._calls.finish())
        return self._answer(self._held) if self._is_call is None else piece

    def _answer(self, text: str) -> ParsedPiece:
        start = self._num_chars
        self._num_chars += len(text)
        return ParsedPiece(text, content_spans=(Span(start, self._num_chars),) if text else ())


class ThinkingFirst:
    """Implements `AnswerParser`: what one parser takes for content, another one takes apart."""

    def __init__(self, thoughts: ReadingParser, calls: ReadingParser | CallsOrAnswer) -> None:
        self._thoughts = thoughts
        self._calls = calls
        self._places = _Places()

    def push(self, text: str) -> ParsedPiece:
        """What became certain with some more text."""
        piece = self._thoughts.push(text)
        return self._joined(piece, self._calls.push(piece.content))

    def finish(self) -> ParsedPiece:
        """The rest."""
        piece = self._thoughts.finish()
        return self._joined(piece, self._calls.finish(piece.content))

    def _joined(self, piece: ParsedPiece, inner: ParsedPiece) -> ParsedPiece:
        self._places.add(piece.content_spans)
        spans = tuple(self._places.of(inner.content_spans))
        return ParsedPiece(inner.content, piece.reasoning, inner.tool_calls, spans)


class _Places:
    """Where parts of a text stand in another one, from whose parts it was put together."""

    def __init__(self) -> None:
        self._num_chars = 0
        # Where a part begins here, and where it is there; nobody asks for what is before the first one.
        self._parts: deque[tuple[int, Span]] = deque()

    def add(self, spans: Iterable[Span]) -> None:
        """Add the parts that are these of the other text."""
        for span in spans:
            self._parts.append((self._num_chars, span))
            self._num_chars += span.end - span.start

    def of(self, spans: Iterable[Span]) -> Iterator[Span]:
        """The places of parts, which come in order."""
        for start, end in spans:
            while start < end:
                at, there = self._parts[0]
                behind = at + there.end - there.start
                if behind <= start:
                    self._parts.popleft()
                    continue
                stop = min(end, behind)
                yield Span(there.start + start - at, there.start + stop - at)
                start = stop
