"""What is known about a call besides its message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Self

from opentelemetry.trace import Span


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client, over HTTP or gRPC."""

    request_id: str
    """Names it in answers, logs and traces."""

    span: Span
    """The router's for it; where it makes none the client's, or that of a trace of its own."""

    deadline: float
    """Time of the event loop's clock at which it is given up."""

    created: int
    """Unix time of its arrival in seconds."""

    tenant: str = ""
    """Whose key it came with; empty where no keys are asked for."""

    session_id: str = ""
    """What the client says that it belongs to; empty when it says nothing."""

    def in_session(self, *given: str | None) -> Self:
        """The same, in the first session that is given unless it is in one already."""
        session_id = self.session_id or next(filter(None, given), "")
        return self if session_id == self.session_id else replace(self, session_id=session_id)

    @property
    def session(self) -> bytes:
        """32 bytes that all calls of the session have in common, and those of no other tenant; else none."""
        if not self.session_id:
            return b""
        return blake2b(f"{self.tenant}\0{self.session_id}".encode(), digest_size=32).digest()
