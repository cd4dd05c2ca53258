"""How spans leave a process: a bounded queue, and an exporter by gRPC or HTTP that says once what goes wrong.

Loads OpenTelemetry's SDK, as `otlp` does, and of its exporters the one that is used.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from pagemesh.config.environment import TracesProtocol

EXPORT_TIMEOUT: Final = 5.0
"""Seconds for one batch, attempts included."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where spans go, and how."""

    endpoint: str
    """A URL; with https, TLS as OpenTelemetry's environment variables say."""
    protocol: TracesProtocol = "grpc"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What goes with each batch, by lower-case names. May be keys."""


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


class BoundedQueue(BatchSpanProcessor):
    """A queue that says what does not fit into it."""

    def __init__(self, exporter: CountedExporter, on_lost: Callable[[int], None]) -> None:
        # As the SDK reads it from the environment: what it keeps has other names in each release.
        self._most: int = self._default_max_queue_size()  # type: ignore[no-untyped-call]
        super().__init__(exporter, max_queue_size=self._most)
        self._exporter = exporter
        self._on_lost = on_lost

    def on_end(self, span: ReadableSpan) -> None:
        """Have it exported, if there is room."""
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        if self._exporter.take_place(self._most):
            super().on_end(span)
        else:
            self._on_lost(1)


class CountedExporter(SpanExporter):
    """The library's own exporter, whose failures are logged as they begin and are over, and not for each batch."""

    def __init__(self, receiver: Receiver, on_lost: Callable[[int], None]) -> None:
        for name in (*_EXPORTER_LOGS, *_OTHER_LOGS):
            logging.getLogger(name).addFilter(_WORDS)
        self._inner = _exporter(receiver)
        self._endpoint = receiver.endpoint
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._num_waiting = 0
        self._num_lost = 0

    def take_place(self, most: int) -> bool:
        """Have one more span wait to be exported, if fewer than `most` do; whether it may."""
        with self._lock:
            has_room = self._num_waiting < most
            self._num_waiting += has_room
            return has_room

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """As the inner exporter's."""
        with self._lock:
            self._num_waiting -= len(spans)
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
