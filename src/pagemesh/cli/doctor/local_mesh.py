"""Who belongs to the mesh whose gateway listens on a port of this machine, by the command lines of its processes.

For a gateway whose routers do not answer: nobody else knows where the rest of the mesh is. Linux only; sees the
processes whose command lines this user may read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pagemesh.cli.doctor.facts import Lead

_SOURCE: Final = "the command lines on this machine"
_ADDRESS: Final = re.compile(r"\{address: '?([^,'{}]+)'?, port_value: (\d+)\}")
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def local_leads(port: int, proc: Path = Path("/proc")) -> list[Lead]:
    """The routers behind the gateway on that port, and the kvstores that these were told of."""
    lines = list(_command_lines(proc))
    routers = {address for words in lines for address in _routers_behind(words, port)}
    leads = [Lead(address, "router", _SOURCE) for address in sorted(routers)]
    ports = {address.rpartition(":")[2] for address in routers}
    for words in lines:
        if _command(words) == "router" and _option(words, "--port") in ports:
            kvstores = _option(words, "--kvstore") or ""
            leads += [Lead(each, "kvstore", _SOURCE) for each in kvstores.split(",") if each]
    return list(dict.fromkeys(leads))


def _command_lines(proc: Path) -> Iterator[list[str]]:
    for process in proc.glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes()
        except OSError:
            continue
        yield text.decode(errors="replace").split("\0")


def _routers_behind(words: Sequence[str], port: int) -> Iterator[str]:
    """Of an Envoy that listens on the port: the other addresses in its configuration."""
    configuration = _option(words, "--config-yaml") or ""
    addresses = _ADDRESS.findall(configuration)
    if any(number == str(port) for _, number in addresses):
        for host, number in addresses:
            if number != str(port):
                yield f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


def _command(words: Sequence[str]) -> str | None:
    """Which part of pagemesh a command line starts."""
    return _option(words, "pagemesh.cli")


def _option(words: Sequence[str], flag: str) -> str | None:
    places = [place for place, word in enumerate(words[:-1]) if word == flag]
    return words[places[0] + 1] if places else None
