"""What an answer says before its first message: initial metadata, gathered while the call is worked on.

gRPC sends it once. So whoever has something to say adds it here, and the boundary sends all of it together
with the first message.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable

Pairs = Iterable[tuple[str, str]]
Source = Callable[[], Pairs]
"""Asked when the first message is about to be sent; what it says then is what the caller is told."""

_sources: contextvars.ContextVar[list[Source]] = contextvars.ContextVar("answer_metadata")


def begin_answer() -> None:
    """Have this task answer another call than before, of which nothing is known yet."""
    _sources.set([])


def add_answer_metadata(source: Source) -> None:
    """Have the answer to the present call begin with this, too; for nothing once a message was sent."""
    _sources.get().append(source)


def answer_metadata() -> tuple[tuple[str, str], ...]:
    """All of it, in the order in which it was added."""
    return tuple(pair for source in _sources.get() for pair in source())
