"""Free ports for the parts of a mesh."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

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


def pick_free(host: str, count: int) -> list[int]:
    """`count` different ports of `host` on which nobody listens now."""
    ports: list[int] = []
    with ExitStack() as held:
        for port in _RANDOM.sample(_RANGE, len(_RANGE)):
            if len(ports) == count:
                return ports
            try:
                held.enter_context(_listen(socket.AF_INET, (host, port)))
            except OSError:
                continue
            ports.append(port)
    raise ConfigError(f"{host} has no {count} free ports between {_RANGE[0]} and {_RANGE[-1]}")


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
