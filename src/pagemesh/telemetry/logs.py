"""Structured logs on stderr: one JSON object per line, or lines for people.

Everything goes through the standard library's logging, so that libraries are formatted likewise, and is written
by a thread of its own: a caller never waits for a reader of the logs, nor for a disk. A disk that is full, or a pipe
that nobody reads, costs lines and nothing else.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import time
from logging.handlers import QueueHandler, QueueListener
from typing import Final

import structlog

from pagemesh.config import ServerConfig

MOST_WAITING: Final = 10_000
"""Lines that wait to be written; further ones are dropped."""

FLUSH_S: Final = 1.0
"""For what is still to be written when the process ends."""


class LogWriter(QueueHandler):
    """Drops what cannot be written: on a full disk, or into a pipe that nobody reads.

    How many lines were lost is logged as soon as lines can be written again.
    """

    def __init__(self, file: int) -> None:
        """`file` is an open file descriptor."""
        self._lines: queue.Queue[logging.LogRecord] = queue.Queue(MOST_WAITING)
        super().__init__(self._lines)
        self.num_dropped = 0
        _FileWriter(self._lines, file, self).start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Take a record, which is formatted by now: it tells of the moment."""
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self.num_dropped += 1

    def flush(self) -> None:
        """Wait until everything is written, but not for long. `logging` calls it at the process's end."""
        deadline = time.monotonic() + FLUSH_S
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.002)


class _FileWriter(QueueListener):
    """Writes itself: a handler would hold its lock in a write that never ends, and `logging` wait for it at the end."""

    def __init__(
        self, lines: queue.Queue[logging.LogRecord], file: int, handler: LogWriter
    ) -> None:
        super().__init__(lines)
        # Past Python's own buffers: a thread that is stuck in one keeps the process from ending.
        self._file = file
        self._handler = handler
        self._num_failed = 0
        self._num_told = 0

    def handle(self, record: logging.LogRecord) -> None:
        """Write a line, and in front of it how many were lost."""
        line = record.getMessage()
        num_lost = self._handler.num_dropped + self._num_failed - self._num_told
        if num_lost:
            line = f"{self._loss(num_lost)}\n{line}"
        if self._write(line):
            self._num_told += num_lost
        else:
            self._num_failed += 1

    def _write(self, line: str) -> bool:
        """Whether it could be written, all of it."""
        rest = f"{line}\n".encode(errors="backslashreplace")
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            return False
        return True

    def _loss(self, count: int) -> str:
        text = f"{count} log lines were lost: the disk was full, or nobody read them"
        lost = logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None)
        return self._handler.format(lost)


def configure_logging(config: ServerConfig, service: str) -> None:
    """Set up logging of this process; every line carries the service's name."""

    def add_service(
        logger: object, method_name: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        event["service"] = service
        return event

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        add_service,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if config.log_format == "json"
        else [console_renderer(colors=sys.stderr.isatty())]
    )
    handler = LogWriter(sys.stderr.fileno())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("pagemesh").setLevel(config.log_level.upper())
    # What callers send that is no trace is ignored, and not quoted.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)


def console_renderer(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    """Lines for people.

    Tracebacks show no local variables, as structlog's own would: prompts and keys are among them,
    and thousands of token ids that hold up everything else while they are printed.
    """
    return structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback
    )


def configure_library_logging() -> None:
    """Hand logs to the standard library's logging, as a guest in somebody else's program.

    Its defaults then hold: warnings on stderr, unless the program says otherwise. Does nothing when the
    program has configured structlog.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def bind_tenant(name: str) -> None:
    """Have every log line of this task, and of tasks that it starts, say for whom it works; "" is left out."""
    structlog.contextvars.unbind_contextvars("tenant")
    if name:
        structlog.contextvars.bind_contextvars(tenant=name)


def bind_call_ids(request_id: str, trace_id: str) -> None:
    """Have every log line of this task, and of tasks that it starts, carry these; empty ones are left out."""
    structlog.contextvars.unbind_contextvars("request_id", "trace_id")
    given = {"request_id": request_id, "trace_id": trace_id}
    structlog.contextvars.bind_contextvars(**{key: value for key, value in given.items() if value})
