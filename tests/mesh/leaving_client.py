"""A client of HTTP/1.1 that goes away in the middle, by closing its connection and nothing else."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any, Self

from tests.mesh.harness import DEADLINE_S, Mesh

KEY = "pm-leaver-0123456789abcdef"


class LeavingClient:
    """Has sent a request when it is made; leaves at the latest with the block."""

    def __init__(self, mesh: Mesh, path: str, body: dict[str, Any]) -> None:
        host, _, port = mesh.address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self._received = b""
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {KEY}\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + content)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def read_until(self, text: str, count: int = 1) -> None:
        """Read on until a text has come so many times."""
        while self._received.count(text.encode()) < count:
            piece = self._socket.recv(4096)
            assert piece, f"the answer ended without {text!r}: {self._received!r}"
            self._received += piece

    def leave(self) -> None:
        """Close the connection. Idempotent."""
        self._socket.close()
