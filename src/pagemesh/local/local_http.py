"""HTTP over unix sockets: what a machine's own processes ask, whatever TLS asks of clients."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path


class LocalConnection(http.client.HTTPConnection):
    """A connection to a server that listens on a unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path
        self._patience = timeout

    def connect(self) -> None:
        """Raises OSError when nobody listens."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(self._patience)
            connected.connect(str(self._path))
        except OSError:
            connected.close()
            raise
        self.sock = connected
