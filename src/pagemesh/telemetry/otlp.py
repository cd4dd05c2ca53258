"""Spans that are exported by OTLP, over gRPC or HTTP. Loads OpenTelemetry's SDK, so it is imported where spans are wanted.

Nothing here waits for the receiver but `close`: spans go through the SDK's bounded queue to a thread of its own, and
are dropped when that is full or nobody takes them. How many, and why, is said once, and not for each batch.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from pagemesh.config.environment import TracesProtocol
from pagemesh.errors import ConfigError

CLOSE_TIMEOUT: Final = 1.0
"""Seconds in which the last spans are sent when the process stops."""

EXPORT_TIMEOUT: Final = 5.0
"""Seconds for one batch, attempts included."""

_QUEUE_SIZE: Final = 2048
"""Spans that wait at most, unless the environment says it: OpenTelemetry's default."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where spans go, and how."""

    endpoint: str
    """A URL; with https, TLS as OpenTelemetry's environment variables say."""
    protocol: TracesProtocol = "grpc"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What goes with each batch, by lower-case names. May be keys."""


class OtlpTraces:
    """The spans of one process, which may be made and ended on any thread."""

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
        queue_size = _queue_size()
        self._exporter = CountedExporter(_exporter(receiver), receiver.endpoint, on_lost)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(share)),
            resource=Resource.create({SERVICE_NAME: service_name, SERVICE_VERSION: version}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(QueueWatch(self._exporter, queue_size, on_lost))
        self._provider.add_span_processor(
            BatchSpanProcessor(self._exporter, max_queue_size=queue_size)
        )
        self.tracer = self._provider.get_tracer("pagemesh", version)
        """What makes them. A span is recorded if its parent is."""
        self._closed = False

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


def _queue_size() -> int:
    """As the SDK's queue would read it, which tells nobody how long it is."""
    text = os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE) or str(_QUEUE_SIZE)
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ConfigError(f"{OTEL_BSP_MAX_QUEUE_SIZE} is {text!r}, but must be a number above 0")
    return int(text)


def _exporter(receiver: Receiver) -> SpanExporter:
    """The library's own for the protocol, which loads what only that one needs."""
    headers = dict(receiver.headers)
    if receiver.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

        return grpc.OTLPSpanExporter(receiver.endpoint, headers=headers, timeout=EXPORT_TIMEOUT)
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

    return http.OTLPSpanExporter(receiver.endpoint, headers=headers, timeout=EXPORT_TIMEOUT)


_EXPORTER_LOGS: Final = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)
_OTHER_LOGS: Final = (
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.util.re",
    "urllib3.connectionpool",
)
"""Of the queue, of headers that the library finds odd, which it quotes, and of each call by HTTP."""


class _Words(logging.Filter):
    """Keeps what the SDK says of each lost batch and span out of the log, but for one look at why."""

    def __init__(self) -> None:
        super().__init__()
        self._of_batch: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Never."""
        if record.name in _EXPORTER_LOGS and record.args:
            self._of_batch.append(record.getMessage())
        return False

    def begin_batch(self) -> None:
        """Forget what was said of others."""
        self._of_batch.clear()

    @property
    def error(self) -> str:
        """Why the batch was lost: by HTTP, the last words may be that there was no time left to try again."""
        first_and_last = dict.fromkeys((*self._of_batch[:1], *self._of_batch[-1:]))
        return "; ".join(first_and_last)


_WORDS: Final = _Words()


class CountedExporter(SpanExporter):
    """The library's own exporter, whose failures are logged as they begin and are over, and not for each batch."""

    def __init__(self, inner: SpanExporter, endpoint: str, on_lost: Callable[[int], None]) -> None:
        for name in (*_EXPORTER_LOGS, *_OTHER_LOGS):
            logging.getLogger(name).addFilter(_WORDS)
        self._inner = inner
        self._endpoint = endpoint
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._num_waiting = 0
        self._num_lost = 0

    def expect(self, most: int) -> bool:
        """One more span waits to be exported; whether it took the place of another, as `most` did already."""
        with self._lock:
            is_full = self._num_waiting >= most
            self._num_waiting += not is_full
            return is_full

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """As the inner exporter's."""
        with self._lock:
            # What ended since these were taken out of a full queue was counted as if it were full still.
            self._num_waiting = max(0, self._num_waiting - len(spans))
        _WORDS.begin_batch()
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._num_lost:
                log.warning(
                    "traces cannot be exported", endpoint=self._endpoint, error=_WORDS.error
                )
            self._num_lost += len(spans)
            self._on_lost(len(spans))
        elif self._num_lost:
            log.info(
                "traces are exported again", endpoint=self._endpoint, num_lost_spans=self._num_lost
            )
            self._num_lost = 0
        return result

    def shutdown(self) -> None:
        """As the inner exporter's."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """As the inner exporter's."""
        return self._inner.force_flush(timeout_millis)


class QueueWatch(SpanProcessor):
    """Stands in front of the queue and says how many spans it drops, which the SDK only logs."""

    def __init__(
        self, exporter: CountedExporter, queue_size: int, on_lost: Callable[[int], None]
    ) -> None:
        self._exporter = exporter
        self._queue_size = queue_size
        self._on_lost = on_lost

    def on_end(self, span: ReadableSpan) -> None:
        """It is about to be queued, if it is recorded."""
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        if self._exporter.expect(self._queue_size):
            self._on_lost(1)
