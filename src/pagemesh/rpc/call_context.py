"""What a call says of itself to every further hop: request id, trace and deadline; and what its answer says first.

The former is bound to a task by whoever receives the call, and inherited by the tasks that it starts; log lines carry
it, and outgoing calls take their metadata and deadline from it.

The latter is the answer's initial metadata, which gRPC sends once. So whoever has something to say adds it here while
the call is worked on, and the boundary sends all of it together with the first message.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, ParamSpec, TypeVar

from pagemesh.errors import DeadlineError
from pagemesh.telemetry.logs import bind_call_ids
from pagemesh.telemetry.trace_context import NO_TRACE, TraceContext, parse_trace

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
TRACEPARENT_KEY: Final = "traceparent"
TRACESTATE_KEY: Final = "tracestate"

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CallContext:
    """The call that a task works for."""

    request_id: str = ""
    """The client's; empty when there is none."""
    trace: TraceContext = NO_TRACE
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


def bind_call(call: CallContext) -> None:
    """Have this task, and tasks that it starts from now on, work for `call`."""
    _current.set(call)
    bind_call_ids(call.request_id, call.trace.trace_id)


def run_for(call: CallContext, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` for another call than this task's; tasks that it starts work for that one."""

    def bound() -> T:
        bind_call(call)
        return function(*args, **kwargs)

    return contextvars.copy_context().run(bound)


@contextmanager
def working_within(trace: TraceContext) -> Iterator[None]:
    """Have this task work, within the block, for a part of its call: what it calls is told that this is its parent."""
    call = replace(_current.get(), trace=trace)
    token = _current.set(call)
    bind_call_ids(call.request_id, trace.trace_id)
    try:
        yield
    finally:
        _current.reset(token)


def read_metadata(
    metadata: Iterable[tuple[str, str | bytes]], time_remaining: float | None
) -> CallContext:
    """The call that arrived with this metadata and so many seconds; None means no deadline."""
    values: dict[str, str] = {}
    states: list[str] = []
    for key, value in metadata:
        if key == TRACESTATE_KEY:
            states.append(str(value))  # several headers are one list
        else:
            values[key] = str(value)
    deadline = None
    if time_remaining is not None:
        deadline = asyncio.get_running_loop().time() + time_remaining
    return CallContext(
        request_id=values.get(REQUEST_ID_KEY, ""),
        trace=parse_trace(values.get(TRACEPARENT_KEY, ""), ",".join(states)),
        deadline=deadline,
        session_id=values.get(SESSION_ID_KEY, ""),
        timeout=values.get(TIMEOUT_KEY, ""),
    )


def outgoing_metadata() -> Metadata:
    """Metadata of a call to another process on behalf of the present one."""
    call = _current.get()
    pairs = (
        (REQUEST_ID_KEY, call.request_id),
        (TRACEPARENT_KEY, call.trace.traceparent),
        (TRACESTATE_KEY, call.trace.tracestate),
    )
    # Anything but printable ASCII would make the call fail, and no id is worth that.
    return tuple(pair for pair in pairs if pair[1] and pair[1].isascii() and pair[1].isprintable())


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
