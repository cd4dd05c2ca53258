"""Spans that are exported by OTLP, over gRPC or HTTP. Loads OpenTelemetry's SDK, so it is imported where spans are wanted.

Nothing here waits for the receiver but `close`: spans go through a bounded queue to a thread of their own, and
are dropped when that is full or nobody takes them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace as api
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from pagemesh.errors import PagemeshError
from pagemesh.telemetry.span_export import BoundedQueue, CountedExporter, Receiver
from pagemesh.telemetry.span_names import ERROR_TYPE
from pagemesh.telemetry.spans import Attributes, BegunSpan, Span, SpanKind, use_span
from pagemesh.telemetry.trace_context import NO_TRACE, TraceContext

CLOSE_TIMEOUT: Final = 1.0
"""Seconds in which the last spans are sent when the process stops."""


class OtlpTracer:
    """Makes the spans of one process. Spans may be made and ended on any thread."""

    def __init__(
        self,
        receiver: Receiver,
        service_name: str,
        version: str,
        share: float = 1.0,
        on_lost: Callable[[int], None] = lambda _: None,
    ) -> None:
        """The sizes of queue and batches are as OpenTelemetry's environment variables say.

        Of the traces that begin here, `share` is recorded. `on_lost` is told, on any thread, how many spans nobody
        took.
        """
        self._exporter = CountedExporter(receiver, on_lost)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(share)),
            resource=Resource.create({SERVICE_NAME: service_name, SERVICE_VERSION: version}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BoundedQueue(self._exporter, on_lost))
        self._tracer = self._provider.get_tracer("pagemesh", version)
        self._closed = False

    def begin(
        self, name: str, parent: TraceContext, attributes: Attributes, kind: SpanKind = "server"
    ) -> BegunSpan:
        """A span below one of this or another process, or of a trace that begins with it.

        It is recorded if its parent is.
        """
        return _OtlpSpan(
            self._tracer,
            self._tracer.start_span(
                name,
                context=api.set_span_in_context(api.NonRecordingSpan(_remote(parent))),
                kind=_KINDS[kind],
                attributes=attributes,
            ),
            name,
            parent.tracestate,
        )

    @contextmanager
    def span(
        self, name: str, parent: TraceContext, attributes: Attributes, kind: SpanKind = "server"
    ) -> Iterator[Span]:
        """Likewise, the present one within the block, and ended with it."""
        with _running(self.begin(name, parent, attributes, kind)) as running:
            yield running

    def close(self) -> None:
        """Send what is left, for as long as `CLOSE_TIMEOUT`. Blocks; idempotent."""
        if self._closed:
            return
        self._closed = True
        stopping = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        stopping.start()
        stopping.join(CLOSE_TIMEOUT)
        if stopping.is_alive():
            # Breaks off what is on its way, and whatever would follow it.
            self._exporter.shutdown()
            stopping.join(CLOSE_TIMEOUT)


_KINDS: Final[Mapping[SpanKind, api.SpanKind]] = {
    "server": api.SpanKind.SERVER,
    "client": api.SpanKind.CLIENT,
}


@contextmanager
def _running(span: BegunSpan) -> Iterator[Span]:
    try:
        with use_span(span):
            yield span
    except PagemeshError as error:
        span.fail(error)
        raise
    finally:
        span.end()


class _OtlpSpan:
    """Implements `BegunSpan`."""

    def __init__(self, tracer: api.Tracer, span: api.Span, name: str, tracestate: str) -> None:
        """`tracestate` is the vendors' data that came with the trace, unchanged."""
        self._tracer = tracer
        self._span = span
        self._name = name
        self._sums: dict[str, int] = {}
        context = span.get_span_context()
        self.trace = TraceContext(
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}",
            tracestate,
        )

    @property
    def is_recording(self) -> bool:
        return self._span.is_recording()

    def about(self, subject: str) -> None:
        self._span.update_name(f"{self._name} {subject}")

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def add(self, attributes: Mapping[str, int]) -> None:
        for name, number in attributes.items():
            self._sums[name] = self._sums.get(name, 0) + number
            self._span.set_attribute(name, self._sums[name])

    def event(self, name: str, attributes: Attributes) -> None:
        self._span.add_event(name, attributes)

    def fail(self, error: PagemeshError) -> None:
        """See `Span`. As for servers of HTTP, only what is the server's fault makes the span an error."""
        self._span.set_attribute(ERROR_TYPE, error.reason)
        if error.http_status >= 500:
            self._span.set_status(api.StatusCode.ERROR, error.message)

    @contextmanager
    def child(self, name: str) -> Iterator[Span]:
        span = self._tracer.start_span(name, context=api.set_span_in_context(self._span))
        with _running(_OtlpSpan(self._tracer, span, name, self.trace.tracestate)) as running:
            yield running

    def end(self) -> None:
        self._span.end()


def _remote(trace: TraceContext) -> api.SpanContext:
    """Of another process's span; an invalid one, which has no children, for no trace."""
    if trace == NO_TRACE:
        return api.SpanContext(0, 0, is_remote=True)
    _, trace_id, span_id, flags = trace.traceparent.split("-")[:4]
    return api.SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=api.TraceFlags(int(flags, 16)),
        trace_state=api.TraceState.from_header([trace.tracestate]) if trace.tracestate else None,
    )
