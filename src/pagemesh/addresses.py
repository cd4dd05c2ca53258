"""Addresses of other processes, as settings name them."""

from __future__ import annotations

from typing import Final

from pagemesh.errors import ConfigError

WILDCARD_HOSTS: Final = ("0.0.0.0", "::", "[::]")
"""Stand for all addresses of a host: servers listen there, but nobody can be reached there."""


def parse_addresses(flag: str, text: str) -> tuple[str, ...]:
    """The addresses in "host:port,host:port", at least one and each of them once.

    ConfigError naming the flag, the whole text and the part that is wrong. An IPv6 address has brackets
    around it.
    """
    addresses = tuple(part.strip() for part in text.split(","))
    for address in addresses:
        fault = _fault(address)
        if fault is not None:
            raise ConfigError(
                f"{flag} is {text!r}, but must be host:port, or several of them with commas in "
                f"between: {address!r} {fault}"
            )
        if addresses.count(address) > 1:
            raise ConfigError(f"{flag} is {text!r}, but {address!r} must be in it only once")
    return addresses


def _fault(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    if not host:
        return "has no port" if address else "is empty"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "needs brackets around its IPv6 address"
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        return "has no port between 1 and 65535"
    if any(character.isspace() or character == "/" for character in host):
        return "has no host that could be one"
    return None
