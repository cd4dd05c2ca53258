"""Spans for calls between processes, as those see them who serve and who make them.

Whatever is called for within such a span is told that it is its parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import grpc

from pagemesh.errors import PagemeshError
from pagemesh.rpc.call_context import current_call, working_within
from pagemesh.rpc.status import as_pagemesh_error
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.otlp import OtlpTracer
from pagemesh.telemetry.spans import Attributes, Span, SpanKind, current_span


@contextmanager
def call_span(
    tracer: OtlpTracer, name: str, attributes: Attributes, kind: SpanKind = "server"
) -> Iterator[Span]:
    """A span below the one that the present call tells of, or of a trace that begins here if it tells of none.

    Within the block it is the present span, and what the task calls works for it; an error that leaves the block
    is its error.
    """
    with _span(tracer, name, attributes, kind) as span:
        try:
            yield span
        except asyncio.CancelledError:
            span.set({names.ERROR_TYPE: names.CANCELLED})
            raise


@contextmanager
def _span(tracer: OtlpTracer, name: str, attributes: Attributes, kind: SpanKind) -> Iterator[Span]:
    with (
        tracer.span(name, current_call().trace, attributes, kind) as span,
        working_within(span.trace),
    ):
        try:
            yield span
        except (PagemeshError, grpc.aio.BaseError):
            # The span is told of the former; the latter says what was told already.
            raise
        except Exception as error:
            span.fail(as_pagemesh_error(error))
            raise


@contextmanager
def part_span(name: str) -> Iterator[Span]:
    """A part of the present span, for which the task works within the block."""
    outer = current_span()
    if not outer.is_recording:
        yield outer
        return
    with outer.child(name) as span, working_within(span.trace):
        yield span


class ServedSpans:
    """A span for each call of some methods that belongs to a recorded trace; no trace begins here.

    A caller that ends a call is not noted: of a stream, it does so when it has what it wants.
    """

    def __init__(self, tracer: OtlpTracer, span_names: Mapping[str, str]) -> None:
        """`span_names` has the span's name for each method, as gRPC names it."""
        self._tracer = tracer
        self._span_names = span_names

    @contextmanager
    def around(self, method: str) -> Iterator[None]:
        """What a server runs a call in."""
        name = self._span_names.get(method)
        call = current_call()
        if name is None or not call.trace.is_sampled:
            yield
            return
        with _span(self._tracer, name, {names.REQUEST_ID: call.request_id}, "server"):
            yield
