"""Network namespaces with a bridge between them: machines of their own, as far as the network goes.

Everything is within namespaces whose names carry this process's id: a bridge in one of them, and a cable
from it to each machine and to this process. Deleting the namespaces deletes all of it; those of a process
that was killed are deleted by the next one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

_PREFIX = "pm-kv"
_SUBNET = f"10.231.{os.getpid() % 256}"
_OWN_HOST = 254
_DELAY_LINE = Path(__file__).with_name("delay_line.py")
_DEADLINE_S = 20.0
_BURST = 131_072
"""Bytes that may pass at once: two unsegmented frames of a stream."""


class Cable(NamedTuple):
    """What a machine's connection to the bridge can do, in each direction."""

    megabits_per_s: int
    delay_ms: float
    """From one such machine to another: half of it on each one's cable."""


class Network:
    """Machines by name; made on entering, gone on leaving."""

    def __init__(self, names: Sequence[str], cables: dict[str, Cable]) -> None:
        """`cables` says for which machines the network is not free."""
        self._names = list(names)
        self._cables = cables
        self._id = f"{_PREFIX}-{os.getpid()}"
        self._hub = f"{self._id}-hub"
        self._own = _own_end(os.getpid())
        self._lines: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        remove_leftovers()
        try:
            self._connect_self()
            for number, name in enumerate(self._names):
                self._add(name, number)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def address(self, name: str) -> str:
        """A machine's IP address."""
        return f"{_SUBNET}.{self._names.index(name) + 1}"

    def prefix(self, name: str) -> list[str]:
        """What to put before a command so that it runs on a machine.

        It has processes of its own too: it cannot see those of the others, nor their memory.
        """
        isolated = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
        return [*self.entrance(name), *isolated]

    def entrance(self, name: str) -> list[str]:
        """Likewise, for a command that shares all but the network, and is itself who gets signals."""
        return ["ip", "netns", "exec", self._namespace(name)]

    def line(self, name: str) -> Line:
        """A machine's connection to all others, to be disturbed."""
        return Line(self._namespace(name), self._hub, self._port(name))

    def _namespace(self, name: str) -> str:
        return f"{self._id}-{name}"

    def _port(self, name: str) -> str:
        """A machine's place at the bridge."""
        return f"port{self._names.index(name)}"

    def _connect_self(self) -> None:
        """The bridge, and a cable from it to where this process is."""
        _run("ip", "netns", "add", self._hub)
        _run("ip", "-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._hub, "link", "set", "bridge", "up")
        peer = ("peer", "name", "own", "netns", self._hub)
        _run("ip", "link", "add", self._own, "type", "veth", *peer)
        _run("ip", "addr", "add", f"{_SUBNET}.{_OWN_HOST}/24", "dev", self._own)
        _run("ip", "link", "set", self._own, "up")
        self._join_bridge("own")

    def _add(self, name: str, number: int) -> None:
        namespace, port = self._namespace(name), self._port(name)
        _run("ip", "netns", "add", namespace)
        cable = self._cables.get(name)
        if cable is None or has_netem():
            peer = ("peer", "name", port, "netns", self._hub)
            _run("ip", "-n", namespace, "link", "add", "eth0", "type", "veth", *peer)
        else:
            self._lay_line(namespace, port, number, cable.delay_ms / 2)
        _run("ip", "-n", namespace, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        self._join_bridge(port)
        if cable is not None:
            _shape(namespace, "eth0", cable)
            _shape(self._hub, port, cable)

    def _join_bridge(self, port: str) -> None:
        _run("ip", "-n", self._hub, "link", "set", port, "master", "bridge")
        _run("ip", "-n", self._hub, "link", "set", port, "up")

    def _lay_line(self, namespace: str, port: str, number: int, delay_ms: float) -> None:
        ends = [f"pm{os.getpid()}{side}{number}" for side in "ab"]
        line = subprocess.Popen(
            [sys.executable, str(_DELAY_LINE), *ends, str(delay_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines.append(line)
        assert line.stdout is not None
        if line.stdout.readline() != "ready\n":
            raise RuntimeError("the delay line did not start; its error is above")
        for end, place, name in ((ends[0], namespace, "eth0"), (ends[1], self._hub, port)):
            _run("ip", "link", "set", end, "netns", place, "name", name)

    def _remove(self) -> None:
        for line in self._lines:
            line.kill()
            line.wait(_DEADLINE_S)
        _remove(os.getpid())


class Line(NamedTuple):
    """A machine's connection to the bridge, which has no cable of its own kind."""

    namespace: str
    hub: str
    port: str

    def cut(self) -> None:
        """Nothing reaches or leaves the machine any more, and nobody is told."""
        _run("ip", "-n", self.hub, "link", "set", self.port, "down")

    def mend(self) -> None:
        """The end of `cut`."""
        _run("ip", "-n", self.hub, "link", "set", self.port, "up")

    def slow_down(self, cable: Cable) -> None:
        """Have the machine be connected by such a cable; its delay counts where the kernel can."""
        _shape(self.namespace, "eth0", cable)
        _shape(self.hub, self.port, cable)

    def speed_up(self) -> None:
        """The end of `slow_down`. Idempotent."""
        for namespace, device in ((self.namespace, "eth0"), (self.hub, self.port)):
            # One that has none is not one to be deleted.
            subprocess.run(
                ["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"],
                capture_output=True,
                check=False,
            )


def why_not() -> str | None:
    """Why there can be no namespaces here; None when there can."""
    for program in ("ip", "tc", "unshare"):
        if shutil.which(program) is None:
            return f"there is no program {program!r}"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    probe = f"{_PREFIX}-{os.getpid()}-probe"
    made = subprocess.run(
        ["ip", "netns", "add", probe], capture_output=True, text=True, check=False
    )
    if made.returncode:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    _run("ip", "netns", "del", probe)
    if not has_netem() and not Path("/dev/net/tun").exists():
        return "the kernel has neither netem nor TAP devices"
    return None


def has_netem() -> bool:
    """Whether this kernel can delay packets by itself."""
    probe = f"{_PREFIX}-{os.getpid()}-probe"
    _run("ip", "netns", "add", probe)
    try:
        tried = ["tc", "-n", probe, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    finally:
        _run("ip", "netns", "del", probe)


def remove_leftovers() -> None:
    """Delete the namespaces of processes that are gone."""
    for name in _namespaces():
        owner = re.match(rf"{_PREFIX}-(\d+)-", name)
        if owner and not Path("/proc", owner[1]).exists():
            _remove(int(owner[1]))


def _remove(owner: int) -> None:
    """Delete what a process made."""
    # Its other end goes with the namespaces, but some time after they seem to be gone.
    if Path("/sys/class/net", _own_end(owner)).exists():
        _run("ip", "link", "del", _own_end(owner))
    for name in _namespaces():
        if name.startswith(f"{_PREFIX}-{owner}-"):
            _run("ip", "netns", "del", name)


def _own_end(owner: int) -> str:
    """Device of the process itself."""
    return f"pm{owner}"


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line]


def _shape(namespace: str, device: str, cable: Cable) -> None:
    """Limit what leaves by a device."""
    rate = f"{cable.megabits_per_s}mbit"
    put = ("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root")
    if has_netem():
        _run(*put, "netem", "delay", f"{cable.delay_ms / 2}ms", "rate", rate, "limit", "10000")
    else:
        _run(*put, "tbf", "rate", rate, "burst", str(_BURST), "latency", "50ms")


def _run(*command: str) -> str:
    """What a program says; RuntimeError with its complaint when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
