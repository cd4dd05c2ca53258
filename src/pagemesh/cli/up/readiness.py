"""Free ports for the parts of a mesh, and whether a part serves: gRPC health checks, an HTTP request to the gateway."""

from __future__ import annotations

import asyncio
import http.client
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.errors import ConfigError
from pagemesh.identity.roles import MeshRole
from pagemesh.local.local_http import LocalConnection

# Below the range from which Linux and macOS take the ports of outgoing connections: nobody is handed
# one of these between the moment it is picked and the moment its part listens on it.
_RANGE = range(20000, 32768)

# Not the seeded generator: two meshes that start at once must not try the same ports.
_RANDOM = random.SystemRandom()


def require_free(host: str, port: int) -> None:
    """Raise ConfigError unless this process could listen on `host`:`port`."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"--host is {host!r}, which is no address: {error.strerror}") from error
    try:
        _listen(family, address).close()
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error


@contextmanager
def held_ports(host: str, count: int) -> Iterator[list[int]]:
    """`count` different free ports of `host`, in order, which no other mesh is given meanwhile.

    Their parts may listen there, end, and listen again. That needs Linux: elsewhere the ports are free when they
    are picked, and nobody knows what they are when their parts come to them, seconds later.
    """
    ports: list[int] = []
    with ExitStack() as holders:
        for port in _RANDOM.sample(_RANGE, len(_RANGE)):
            if len(ports) == count:
                break
            try:
                holders.enter_context(_hold((host, port)))
            except OSError:
                continue
            ports.append(port)
        if len(ports) < count:
            raise ConfigError(f"{host} has no {count} free ports from {_RANGE[0]} to {_RANGE[-1]}")
        if sys.platform != "linux":
            holders.close()
        yield sorted(ports)


def _hold(address: tuple[str, int]) -> socket.socket:
    """A socket that has the address without listening there; OSError if anybody else has it."""
    holder = socket.socket()
    try:
        holder.bind(address)
        # From here on Linux lets whoever sets this too, as servers do, listen; but not who holds it like this.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        holder.close()
        raise
    return holder


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As servers do: connections of an earlier server that linger in TIME_WAIT are no obstacle.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener


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
