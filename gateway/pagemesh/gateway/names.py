"""Names and units that several parts of the configuration share, and when the connection of a vanished client ends."""

from __future__ import annotations

import socket
import sys
from typing import Any, Final

from pagemesh.telemetry.metrics import gateway

IDLE_SECONDS: Final = 15
"""Of silence on a connection, after which its client is asked whether it is there."""

VANISHED_SECONDS: Final = 30
"""After so many without an answer a connection is closed, and what was asked for on it is cancelled: long enough
for a phone to change its network."""

_NUM_PROBES: Final = 3

_DARWIN_CONNECTION_DROP_TIME: Final = 0x80
"""TCP_RXT_CONNDROPTIME of macOS, in seconds, which Python has no name for."""


def keepalive_options() -> list[dict[str, Any]]:
    """Socket options of a TCP listener, which the connections that it accepts inherit.

    The last one is for tokens that nobody acknowledges: with some on their way the system does not ask, and
    sends them again for a quarter of an hour. It also ends connections of clients whose buffers stay full. On
    macOS the same is called otherwise.
    """
    if sys.platform == "darwin":
        idle, unacknowledged = (
            socket.TCP_KEEPALIVE,
            (_DARWIN_CONNECTION_DROP_TIME, VANISHED_SECONDS),
        )
    else:
        idle, unacknowledged = (
            socket.TCP_KEEPIDLE,
            (socket.TCP_USER_TIMEOUT, 1000 * VANISHED_SECONDS),
        )
    interval = (VANISHED_SECONDS - IDLE_SECONDS) // _NUM_PROBES
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, idle, IDLE_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _NUM_PROBES),
        (socket.IPPROTO_TCP, *unacknowledged),
    ]
    return [
        {"level": int(level), "name": int(name), "int_value": value, "state": "STATE_LISTENING"}
        for level, name, value in options
    ]


TYPE: Final = "type.googleapis.com/envoy.extensions."
"""Beginning of the type of every extension."""

MANAGER: Final = gateway.MANAGER
"""Under which Envoy counts the requests of clients."""

CLUSTER: Final = gateway.CLUSTER
"""Of the routers."""

MIB: Final = 1024 * 1024

PRIVATE_HEADERS: Final = ("x-http-status", "x-client-id", "x-pagemesh-tenant")
"""Set by the gateway or the router alone; a client must not forge them."""

TENANT_HEADER: Final = "x-pagemesh-tenant"
"""In which a router names the tenant of a request, for the access log alone."""

TENANT_METADATA: Final = ("pagemesh", "tenant")
"""Namespace and key under which Envoy keeps it."""

CREDENTIALS: Final = ("authorization", "x-api-key")
"""Headers in which a client sends its key: OpenAI's and Anthropic's."""

ANTHROPIC_PREFIX: Final = "/v1/messages"
"""Beginning of the paths whose clients expect Anthropic's error object."""
