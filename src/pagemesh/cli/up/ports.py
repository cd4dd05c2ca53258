"""Free ports for the parts of a mesh."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pagemesh.errors import ConfigError

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
