"""A client whose machine vanished is asked whether it is there: the system does that for Envoy."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pagemesh.gateway.names import IDLE_SECONDS
from tests.gateway.conftest import Gateway

KEEPALIVE = "02"
"""Of the timers in /proc/net/tcp, the one that waits to ask."""


def timer(local_port: int, remote_port: int) -> tuple[str, float]:
    """Kind and seconds left of a connection's timer, at its end with this local port."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, timer, *_ = line.split()
        ports = [int(address.partition(":")[2], 16) for address in (local, remote)]
        if ports == [local_port, remote_port]:
            kind, _, ticks = timer.partition(":")
            return kind, int(ticks, 16) / os.sysconf("SC_CLK_TCK")
    raise AssertionError(f"there is no connection from {remote_port} to {local_port}")


def test_a_silent_connection_is_asked_after_a_while(gateway: Gateway) -> None:
    port = gateway.config.port
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.recv(4096)
        kind, seconds = timer(port, client.getsockname()[1])
    assert kind == KEEPALIVE
    assert IDLE_SECONDS - 5 < seconds <= IDLE_SECONDS
