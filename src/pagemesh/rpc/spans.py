"""Spans for calls between processes, as those see them who serve and who make them.

Within such a span it is the present one: whatever is called for is told that it is its parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import grpc
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Tracer

from pagemesh.errors import PagemeshError
from pagemesh.rpc.call_context import current_call
from pagemesh.rpc.status import as_pagemesh_error
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.logs import bind_call_ids
from pagemesh.telemetry.spans import Attributes, fail, is_sampled, trace_id_of


@contextmanager
def call_span(
    tracer: Tracer, name: str, attributes: Attributes, kind: SpanKind = SpanKind.SERVER
) -> Iterator[Span]:
    """A span below the present one, or of a trace that begins here if there is none.

    An error that leaves the block is its error, and so is that nobody wants the call any more.
    """
    with _span(tracer, name, attributes, kind) as span:
        try:
            yield span
        except asyncio.CancelledError:
            span.set_attribute(names.ERROR_TYPE, names.CANCELLED)
            raise


@contextmanager
def _span(tracer: Tracer, name: str, attributes: Attributes, kind: SpanKind) -> Iterator[Span]:
    # Of an error, a span has our reason and no traceback, which may quote what clients sent.
    with tracer.start_as_current_span(
        name,
        kind=kind,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        bind_call_ids(current_call().request_id, trace_id_of(span))
        try:
            yield span
        except grpc.aio.BaseError:
            # It says what was told already.
            raise
        except Exception as error:
            fail(span, as_pagemesh_error(error))
            raise


@contextmanager
def part_span(tracer: Tracer, name: str) -> Iterator[Span]:
    """A part of the present span, if that is recorded; else that one. A PagemeshError that leaves the block is its error."""
    outer = trace.get_current_span()
    if not outer.is_recording():
        yield outer
        return
    with tracer.start_as_current_span(
        name, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except PagemeshError as error:
            fail(span, error)
            raise


class ServedSpans:
    """A span for each call of some methods that belongs to a recorded trace; no trace begins here.

    A caller that ends a call is not noted: of a stream, it does so when it has what it wants.
    """

    def __init__(self, tracer: Tracer, span_names: Mapping[str, str]) -> None:
        """`span_names` has the span's name for each method, as gRPC names it."""
        self._tracer = tracer
        self._span_names = span_names

    @contextmanager
    def around(self, method: str) -> Iterator[None]:
        """What a server runs a call in."""
        name = self._span_names.get(method)
        if name is None or not is_sampled(trace.get_current_span()):
            yield
            return
        attributes = {names.REQUEST_ID: current_call().request_id}
        with _span(self._tracer, name, attributes, SpanKind.SERVER):
            yield
