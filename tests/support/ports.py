"""Ports for processes that must be told theirs."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of the loopback address on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
