"""What a container's first process has to do: end when it is told to, and reap processes whose parent has died.

The kernel does neither for it. Elsewhere another process has number 1, and nothing here has an effect.
"""

from __future__ import annotations

import contextlib
import os
import signal


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
