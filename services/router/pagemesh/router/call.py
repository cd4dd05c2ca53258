"""What is known about a call besides its message."""

from __future__ import annotations

from dataclasses import dataclass

from pagemesh.telemetry.trace_context import TraceContext


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client, over HTTP or gRPC."""

    request_id: str
    """Names it in answers, logs and traces."""

    trace: TraceContext
    """The client's trace, or one of its own."""

    deadline: float
    """Time of the event loop's clock at which it is given up."""

    created: int
    """Unix time of its arrival in seconds."""

    tenant: str = ""
    """Whose key it came with; empty where no keys are asked for."""
