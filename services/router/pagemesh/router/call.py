"""What is known about a call besides its message."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client, over HTTP or gRPC."""

    request_id: str
    """Names it in answers, logs and traces."""

    traceparent: str
    """W3C trace context; may be empty."""

    deadline: float
    """Time of the event loop's clock at which it is given up."""

    created: int
    """Unix time of its arrival in seconds."""
