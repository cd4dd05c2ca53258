"""The address under which a worker tells others to call it."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from pagemesh.addresses import WILDCARD_HOSTS
from pagemesh.config import MemberConfig, WorkerConfig
from pagemesh.errors import ConfigError

_AUTO: Final = "auto"


def check_advertised(config: WorkerConfig) -> None:
    """Raise ConfigError when other processes would be told an address that they cannot reach."""
    member, host = config.member, config.server.host
    if member.kvstore is not None and member.advertise is None and host in WILDCARD_HOSTS:
        raise ConfigError(
            f"--advertise is unset, but must be host:port, or auto, when --host is {host!r}, "
            "which others cannot reach"
        )
    if member.advertise == _AUTO:
        _own_host()


def advertised(member: MemberConfig, listening: str) -> str:
    """host:port for others, of a worker that listens on host:port. ConfigError where auto finds none."""
    if member.advertise != _AUTO:
        return member.advertise or listening
    return f"{_own_host()}:{listening.rpartition(':')[2]}"


def _own_host() -> str:
    """What this machine's name stands for; in a container, its address in the first of its networks."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    for _, _, _, _, (host, *_) in found:
        address = ipaddress.ip_address(str(host).partition("%")[0])
        if not (address.is_loopback or address.is_link_local or address.is_unspecified):
            return f"[{address}]" if address.version == 6 else str(address)
    raise ConfigError(
        f"--advertise is {_AUTO!r}, but the name of this machine, {name!r}, stands for no address that others"
        " could reach: give host:port"
    )
