"""What readers found and nobody has fetched yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pagemesh.router.parsers.interface import ParsedPiece, Span, ToolCallDelta
from pagemesh.router.parsers.source import Source


class Output(Protocol):
    """Where a reader puts what it finds."""

    def follow(self, source: Source) -> None:
        """Say where it is read: what is found ends there, unless told."""
        ...

    def end(self) -> None:
        """Say that no more comes."""
        ...

    def fetch(self) -> ParsedPiece:
        """What was found since the last time."""
        ...


class _Content:
    """Content that nobody has fetched yet, with its places."""

    def __init__(self) -> None:
        self.source = Source()
        self._texts: list[str] = []
        self._spans: list[Span] = []

    def add(self, text: str, num_behind: int = 0) -> None:
        """Add what stands before the last characters that were read, so many of them."""
        end = self.source.position - num_behind
        self._texts.append(text)
        self._spans.append(Span(end - len(text), end))

    def fetch(self) -> tuple[str, tuple[Span, ...]]:
        """All, and where it stood."""
        found = "".join(self._texts), tuple(self._spans)
        self._texts.clear()
        self._spans.clear()
        return found


class ThoughtOutput:
    """Implements `Output` for content and reasoning."""

    def __init__(self) -> None:
        self._content = _Content()
        self._reasoning: list[str] = []

    def follow(self, source: Source) -> None:
        self._content.source = source

    def content(self, text: str) -> None:
        """Add content."""
        self._content.add(text)

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._reasoning.append(text)

    def end(self) -> None:
        """Nothing is held back here."""

    def fetch(self) -> ParsedPiece:
        """What was found since the last time."""
        content, spans = self._content.fetch()
        piece = ParsedPiece(content, "".join(self._reasoning), content_spans=spans)
        self._reasoning.clear()
        return piece


class CallOutput:
    """Implements `Output` for content and tool calls.

    Blanks before the first call and behind each one separate; they are content only when other content
    follows them, or when there was no call at all.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._content = _Content()
        self._calls: list[_CallPart] = []
        self._num_calls = 0
        # None while there is content behind the last call.
        self._separator: str | None = ""

    def follow(self, source: Source) -> None:
        self._content.source = source

    def content(self, text: str, num_behind: int = 0) -> None:
        """Add content; so many characters behind it are read already."""
        if self._separator is not None:
            if not text.strip():
                self._separator += text
                return
            text = self._separator + text
            self._separator = None
        self._content.add(text, num_behind)

    def separate(self, text: str) -> None:
        """Add what separates two calls, if another one follows."""
        assert self._separator is not None
        self._separator += text

    def begin_call(self, name: str) -> None:
        """Begin the next call, whose arguments follow."""
        self._separator = ""
        self._calls.append(_CallPart(self._num_calls, self._new_id(), name))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that began last."""
        if not self._calls:
            self._calls.append(_CallPart(self._num_calls - 1))
        self._calls[-1].arguments.append(text)

    def close_call(self) -> None:
        """Say that the text which closes a call came: blanks before it are none behind it."""
        if self._separator is not None:
            self._separator = ""

    def end(self) -> None:
        """Say that no more comes."""
        if self._separator and self._num_calls == 0:
            self._content.add(self._separator)

    def fetch(self) -> ParsedPiece:
        """What was found since the last time."""
        deltas = tuple(call.delta() for call in self._calls)
        content, spans = self._content.fetch()
        piece = ParsedPiece(
            content,
            tool_calls=tuple(delta for delta in deltas if delta is not None),
            content_spans=spans,
        )
        self._calls.clear()
        return piece


class _CallPart:
    """A part of a call; its first one has id and name."""

    def __init__(self, index: int, call_id: str | None = None, name: str | None = None) -> None:
        self._index = index
        self._call_id = call_id
        self._name = name
        self.arguments: list[str] = []

    def delta(self) -> ToolCallDelta | None:
        """None when there is nothing in it."""
        arguments = "".join(self.arguments)
        if not arguments and self._call_id is None:
            return None
        return ToolCallDelta(self._index, self._call_id, self._name, arguments)
