"""Spans are opentelemetry-api's; here is how a trace goes from one process to the next, and how an error is told to a span.

W3C trace context (https://www.w3.org/TR/trace-context/) is read and written by the library. Where a process makes
no span of its own, its caller's is the present one, and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, Span, SpanContext, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pagemesh.errors import PagemeshError
from pagemesh.telemetry.span_names import ERROR_TYPE

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_MAX_STATE_CHARS: Final = 512
"""What the standard has one pass on at least. More of it could fill the metadata of calls."""


def read_trace(traceparent: str, tracestate: str = "") -> Span:
    """The span of whoever sent this; an invalid one when it is malformed, which the standard has one ignore."""
    if not traceparent:
        return INVALID_SPAN
    told = {TRACEPARENT: traceparent}
    if 0 < len(tracestate) <= _MAX_STATE_CHARS:
        told[TRACESTATE] = tracestate
    return trace.get_current_span(_PROPAGATOR.extract(told, Context()))


def write_trace(span: Span) -> dict[str, str]:
    """What is told to whoever works for a span, so that theirs become its children; nothing for an invalid one."""
    told: dict[str, str] = {}
    _PROPAGATOR.inject(told, within(span))
    return told


def new_trace() -> Span:
    """A trace for a request that came with none; not sampled, because nobody here records it."""
    trace_id, span_id = int.from_bytes(os.urandom(16)), int.from_bytes(os.urandom(8))
    return NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=False))


def within(span: Span) -> Context:
    """The context for spans below this one."""
    return trace.set_span_in_context(span, Context())


def trace_id_of(span: Span) -> str:
    """32 hex digits, the same in every process; empty for no trace."""
    context = span.get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else ""


def is_sampled(span: Span) -> bool:
    """Whether whoever began its trace has it recorded; False for no trace."""
    return span.get_span_context().trace_flags.sampled


def fail(span: Span, error: PagemeshError) -> None:
    """Say that a span ended with this error. As for servers of HTTP, only what is the server's fault makes it one."""
    span.set_attribute(ERROR_TYPE, error.reason)
    if error.http_status >= 500:
        span.set_status(StatusCode.ERROR, error.message)
