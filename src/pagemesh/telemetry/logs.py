"""Structured logs on stderr: one JSON object per line, or lines for people.

Everything goes through the standard library's logging, so that libraries are formatted likewise, and is written
by a thread of its own: a disk that is full, or a pipe that nobody reads, costs lines and nothing else.
"""

from __future__ import annotations

import logging
import sys

import structlog

from pagemesh.config import ServerConfig
from pagemesh.telemetry.log_writer import LogWriter


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
