"""Spans as the code around them sees them: what is going on, as part of a trace. Knows no way to export them.

Whoever makes spans puts the present one here, and whoever knows something of it finds it here. Where nobody
records, that is `NO_SPAN`, which costs nothing.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, Literal, Protocol

from pagemesh.errors import PagemeshError
from pagemesh.telemetry.trace_context import NO_TRACE, TraceContext

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]

SpanKind = Literal["server", "client"]
"""Whether a span is that of a call as it is served, or as its caller sees it."""


class Span(Protocol):
    """One operation, from when it was made until it is ended."""

    @property
    def is_recording(self) -> bool:
        """Whether what is told is kept; else there is no need to work it out."""
        ...

    @property
    def trace(self) -> TraceContext:
        """What is told to whoever works for it, so that their spans become its children."""
        ...

    def about(self, subject: str) -> None:
        """Say what it works on, which becomes the end of its name; at most once."""
        ...

    def set(self, attributes: Attributes) -> None:
        """Say something of it; of the same attribute, the last word counts."""
        ...

    def add(self, attributes: Mapping[str, int]) -> None:
        """Count something of it; what is added to one attribute is summed."""
        ...

    def event(self, name: str, attributes: Attributes) -> None:
        """Say that something happened now."""
        ...

    def fail(self, error: PagemeshError) -> None:
        """Say that it ended with this error, and whether that was the caller's mistake."""
        ...

    def child(self, name: str) -> AbstractContextManager[Span]:
        """A part of it, the present span within the block; a PagemeshError that leaves the block is its error."""
        ...


class BegunSpan(Span, Protocol):
    """A span that no block of code is around: whoever began it ends it."""

    def end(self) -> None:
        """It is over; it says nothing any more."""
        ...


class _NoSpan:
    is_recording: Final = False
    trace: Final = NO_TRACE

    def about(self, subject: str) -> None:
        """Nothing."""

    def set(self, attributes: Attributes) -> None:
        """Nothing."""

    def add(self, attributes: Mapping[str, int]) -> None:
        """Nothing."""

    def event(self, name: str, attributes: Attributes) -> None:
        """Nothing."""

    def fail(self, error: PagemeshError) -> None:
        """Nothing."""

    def child(self, name: str) -> AbstractContextManager[Span]:
        """Itself."""
        return nullcontext(self)


NO_SPAN: Final[Span] = _NoSpan()

_current: contextvars.ContextVar[Span] = contextvars.ContextVar("span", default=NO_SPAN)


def current_span() -> Span:
    """The span that this task works for; NO_SPAN where there is none."""
    return _current.get()


@contextmanager
def use_span(span: Span) -> Iterator[None]:
    """Have this task, and tasks that it starts meanwhile, work for a span."""
    token = _current.set(span)
    try:
        yield
    finally:
        _current.reset(token)
