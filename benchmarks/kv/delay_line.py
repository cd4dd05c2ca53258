"""An Ethernet cable of a given length: frames that enter one end leave the other some time later.

For kernels without `tc netem`. The ends are two TAP devices, which whoever starts this moves to where they
are wanted; frames are passed on as the kernel gives them, large ones unsegmented, so that a process keeps up
with some gigabits per second. Takes the devices' names and the delay in ms, says "ready" when they exist,
and ends with its standard input.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from typing import Final

# Of linux/if_tun.h.
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_CHECKSUMS, _TSO4, _TSO6, _TSO_ECN = 0x01, 0x02, 0x04, 0x08

_LARGEST_FRAME: Final = 70_000
_MOST_WAITING: Final = 4_096
"""Frames; further ones stay in the device, whose queue may drop them."""
_AT_ONCE: Final = 16
"""Frames that are read before those that are due are written."""


class _Way:
    """From one device to the other."""

    def __init__(self, source: int, target: int, delay_s: float) -> None:
        self.source = source
        self._target = target
        self._delay_s = delay_s
        self._waiting: deque[tuple[float, bytes]] = deque()

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < _MOST_WAITING

    @property
    def due(self) -> float | None:
        """When the next frame leaves."""
        return self._waiting[0][0] if self._waiting else None

    def take(self) -> None:
        """Let frames enter."""
        for _ in range(_AT_ONCE):
            try:
                frame = os.read(self.source, _LARGEST_FRAME)
            except BlockingIOError:
                return
            self._waiting.append((time.monotonic() + self._delay_s, frame))

    def give(self) -> None:
        """Let those leave that are due."""
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            try:
                os.write(self._target, self._waiting.popleft()[1])
            except OSError:  # the device is down: nothing is connected to a loose end
                continue


def open_tap(name: str) -> int:
    """A new TAP device, whose frames carry what the kernel wants to know of large ones."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _CHECKSUMS | _TSO4 | _TSO6 | _TSO_ECN)
    return device


def main() -> None:
    """Pass frames on until the standard input ends."""
    first, second, delay_ms = sys.argv[1:]
    ends = open_tap(first), open_tap(second)
    ways = [
        _Way(ends[0], ends[1], float(delay_ms) / 1e3),
        _Way(ends[1], ends[0], float(delay_ms) / 1e3),
    ]
    # A late frame would be a longer cable.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("ready", flush=True)
    while True:
        due = [way.due for way in ways if way.due is not None]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        sources = [way.source for way in ways if way.has_room]
        readable, _, _ = select.select([*sources, sys.stdin], [], [], timeout)
        if sys.stdin in readable:
            return
        for way in ways:
            if way.source in readable:
                way.take()
            way.give()


if __name__ == "__main__":
    main()
