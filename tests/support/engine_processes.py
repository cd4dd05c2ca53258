"""The engines' processes that a worker, or a test in its place, has started."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import psutil


def engine_processes(
    program: str = "pagemesh.engine_process.server", *, of: int | None = None
) -> list[psutil.Process]:
    """Children that run this program, oldest first, of this process or of the one with that id.

    Other tests' servers may be children as well.
    """
    children = psutil.Process(of).children()
    return sorted((c for c in children if program in c.cmdline()), key=psutil.Process.create_time)


def freeze(process: psutil.Process) -> None:
    """Stop a process and wait until none of its threads does anything any more."""
    process.suspend()
    deadline = time.monotonic() + 10
    while not all(state == "T" for state in _thread_states(process)):
        assert time.monotonic() < deadline, f"{process} does not stop"
        time.sleep(0.001)


def _thread_states(process: psutil.Process) -> list[str]:
    """One letter each, behind the name in parentheses, which may contain anything."""
    states = []
    for stat in Path(f"/proc/{process.pid}/task").glob("*/stat"):
        # A thread may end meanwhile.
        with suppress(OSError):
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return states
