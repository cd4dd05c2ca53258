"""Whether a part serves: gRPC health checks, and an HTTP request to the gateway."""

from __future__ import annotations

import asyncio
import http.client
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.identity.roles import MeshRole
from pagemesh.local.local_http import LocalConnection

_INTERVAL = 0.05
_TIMEOUT = 1.0

# The library waits a second and more between two connection attempts.
_EAGER: list[tuple[str, int]] = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
]


async def grpc_serves(
    address: str, role: MeshRole, certificate: grpc.ChannelCredentials | None
) -> None:
    """Wait until the server at `address`, which is `role`, reports SERVING. The caller sets the deadline."""
    async with _open_eager(address, role, certificate) as channel:
        # The library's stubs for type checkers know no methods.
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(_INTERVAL)


def _open_eager(
    address: str, role: MeshRole, certificate: grpc.ChannelCredentials | None
) -> grpc.aio.Channel:
    if certificate is None:
        return grpc.aio.insecure_channel(address, options=_EAGER)
    options = [*_EAGER, ("grpc.ssl_target_name_override", role.dns_name)]
    return grpc.aio.secure_channel(address, certificate, options=options)


async def http_answers(gateway: Path, path: str, *statuses: int) -> None:
    """Wait until GET `path` is answered on a unix socket, with one of `statuses` if any are given.

    The caller sets the deadline.
    """
    while True:
        status = await asyncio.to_thread(http_status, gateway, path)
        if status is not None and (not statuses or status in statuses):
            return
        await asyncio.sleep(_INTERVAL)


def http_status(gateway: Path, path: str) -> int | None:
    """Status of GET `path` on a unix socket; None without an answer within a second."""
    connection = LocalConnection(gateway, timeout=_TIMEOUT)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
