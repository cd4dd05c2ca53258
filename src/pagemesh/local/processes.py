"""What processes on one machine do for each other: die with a parent, be a container's first, load without collecting.

As a program this turns into another one, which the kernel kills when whoever started it dies, however that dies:

    python -I -S processes.py <process id of the parent> <program> <argument> …

A program of its own, because a supervisor has threads, gRPC's among them: what it ran between fork and
exec could hang or crash, and a fork could leave its own channels stuck. On Linux alone; elsewhere the
program just runs.

A container's first process has to end when it is told to, and reap processes whose parent has died: the kernel does
neither for it. Elsewhere another process has number 1, and nothing here has an effect.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1


def bound_to(parent: int, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command line that runs a command bound to its parent."""
    return (sys.executable, "-I", "-S", __file__, str(parent), *command)


def main() -> None:
    """Bind this process and become the program."""
    parent, program, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            os._exit(1)
    try:
        os.execvp(program, [program, *arguments])
    except OSError as error:
        sys.exit(f"{program} cannot be run: {error.strerror}")


def heed_sigterm() -> None:
    """Have SIGTERM end this process at once, as the kernel does with any other, until it gets a handler that ends it
    in order: whoever stops the container would wait in vain while it loads, or fetches a model."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


def reap_orphans() -> None:
    """Reap what has ended since its parent did, and would else be in the table of processes for ever.

    What this process started is left to its own waiting; such a child leads a session, or is of this one's.
    """
    if not hasattr(os, "waitid"):
        return
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if os.getsid(ended.si_pid) in (ended.si_pid, os.getsid(0)):
                return
            os.waitid(os.P_PID, ended.si_pid, os.WEXITED | os.WNOHANG)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Around imports of a process that is ours: what is there at their end is not looked at again.

    Modules stay until the process ends. The collector would walk them in pauses that every stream waits for.
    """
    with uncollected():
        yield
        gc.freeze()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Around what makes much that stays: the collector would walk it again and again while it grows in number."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def collected_at_end() -> Iterator[None]:
    """Around work that leaves little of much: what it leaves as garbage is collected once, and nothing else looked at."""
    was_frozen = gc.get_freeze_count() > 0
    with uncollected():
        gc.freeze()
        try:
            yield
            gc.collect()
        finally:
            # What is frozen for good stays so.
            if not was_frozen:
                gc.unfreeze()


if __name__ == "__main__":
    main()
