"""Spans are opentelemetry-api's; here is who makes them, how a trace goes on to the next process, and how errors are told.

Whether a process makes spans is decided once, when it starts: the SDK is loaded only where they are wanted. W3C trace
context (https://www.w3.org/TR/trace-context/) is read and written by the library. Where a process makes no span of its
own, its caller's is the present one, and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Final, Literal, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanContext,
    StatusCode,
    Tracer,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pagemesh.config import TracesConfig
from pagemesh.config.environment import traces_headers_of_environment
from pagemesh.errors import PagemeshError
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.process import SPANS_DROPPED
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


class Traces(NamedTuple):
    """What makes the spans of a process."""

    tracer: Tracer
    close: Callable[[], None]
    """Sends what is left. May block for two seconds; idempotent."""


def start_traces(
    config: TracesConfig,
    service: Literal["router", "prefill", "decode", "kvstore"],
    metrics: Metrics,
) -> Traces:
    """As the settings say: with an endpoint its spans are exported, else nothing comes of them. To be closed."""
    endpoint = config.endpoint
    if endpoint is None:
        return Traces(NoOpTracer(), lambda: None)
    from pagemesh.telemetry.otlp import OtlpTraces, Receiver

    lost = metrics.counter(SPANS_DROPPED)
    receiver = Receiver(endpoint, config.protocol, traces_headers_of_environment())
    name = f"pagemesh-{service}"
    traces = OtlpTraces(receiver, name, version("pagemesh"), config.share, on_lost=lost.inc)
    return Traces(traces.tracer, traces.close)
