"""What a call says of itself to every further hop: request id, trace and deadline; and what its answer says first.

The former is bound to a task by whoever receives the call, and inherited by the tasks that it starts; log lines carry
it, and outgoing calls take their metadata and deadline from it. The trace is OpenTelemetry's present span: the caller's,
or one of this process below it.

The latter is the answer's initial metadata, which gRPC sends once. So whoever has something to say adds it here while
the call is worked on, and the boundary sends all of it together with the first message.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

from opentelemetry import context, trace
from opentelemetry.trace import Span

from pagemesh.errors import DeadlineError
from pagemesh.telemetry.logs import bind_call_ids
from pagemesh.telemetry.spans import (
    TRACEPARENT,
    TRACESTATE,
    read_trace,
    trace_id_of,
    within,
    write_trace,
)

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


P = ParamSpec("P")
T = TypeVar("T")

REQUEST_ID_KEY: Final = "x-request-id"
"""Metadata key of the client's request id."""
SESSION_ID_KEY: Final = "x-session-id"
"""Metadata key of what several requests of a client belong to; goes no further than to its first hop."""
TIMEOUT_KEY: Final = "x-request-timeout"
"""Metadata key of the seconds that the client gives its request, for clients that know no deadline of gRPC's."""

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CallContext:
    """The call that a task works for."""

    request_id: str = ""
    """The client's; empty when there is none."""
    deadline: float | None = None
    """Loop time at which the caller gives up; None when it waits for ever."""
    session_id: str = ""
    """What it belongs to; empty when nobody says."""
    timeout: str = ""
    """Seconds that the caller says that it may take, as it wrote them; `deadline` is known without."""


_NO_CALL: Final = CallContext()
_current: contextvars.ContextVar[CallContext] = contextvars.ContextVar("call", default=_NO_CALL)


def current_call() -> CallContext:
    """The call that this task works for; an empty one outside of calls."""
    return _current.get()


def bind_call(call: CallContext, span: Span) -> None:
    """Have this task, and tasks that it starts from now on, work for `call`, and below `span`."""
    _current.set(call)
    context.attach(within(span))
    bind_call_ids(call.request_id, trace_id_of(span))


def run_for(
    call: CallContext, span: Span, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call `function` for another call and below another span than this task's; tasks that it starts work for those."""

    def bound() -> T:
        bind_call(call, span)
        return function(*args, **kwargs)

    return contextvars.copy_context().run(bound)


def read_metadata(
    metadata: Iterable[tuple[str, str | bytes]], time_remaining: float | None
) -> tuple[CallContext, Span]:
    """The call that arrived with this metadata and so many seconds, and its caller's span; None means no deadline."""
    values: dict[str, str] = {}
    states: list[str] = []
    for key, value in metadata:
        if key == TRACESTATE:
            states.append(str(value))  # several headers are one list
        else:
            values[key] = str(value)
    deadline = None
    if time_remaining is not None:
        deadline = asyncio.get_running_loop().time() + time_remaining
    call = CallContext(
        request_id=values.get(REQUEST_ID_KEY, ""),
        deadline=deadline,
        session_id=values.get(SESSION_ID_KEY, ""),
        timeout=values.get(TIMEOUT_KEY, ""),
    )
    return call, read_trace(values.get(TRACEPARENT, ""), ",".join(states))


def outgoing_metadata() -> Metadata:
    """Metadata of a call to another process on behalf of the present one."""
    request_id = _current.get().request_id
    pairs = tuple(write_trace(trace.get_current_span()).items())
    # Anything but printable ASCII would make the call fail, and no id is worth that.
    if request_id and request_id.isascii() and request_id.isprintable():
        return ((REQUEST_ID_KEY, request_id), *pairs)
    return pairs


def call_timeout(own_limit: float) -> float:
    """Seconds for a call on behalf of the present one: its own limit, or what the caller has left.

    Raises DeadlineError when the caller has nothing left.
    """
    deadline = _current.get().deadline
    if deadline is None:
        return own_limit
    remaining = deadline - asyncio.get_running_loop().time()
    if remaining <= 0:
        raise DeadlineError("the caller's deadline is over")
    return min(own_limit, remaining)
