"""Turns into another program, which the kernel kills when whoever started it dies, however that dies.

    python -I -S bound_process.py <process id of the parent> <program> <argument> …

A program of its own, because a supervisor has threads, gRPC's among them: what it ran between fork and
exec could hang or crash, and a fork could leave its own channels stuck. On Linux alone; elsewhere the
program just runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

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


if __name__ == "__main__":
    main()
