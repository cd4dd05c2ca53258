"""What a process does when it has loaded everything and serves from now on."""

from __future__ import annotations

import gc

from pagemesh.rpc.loop_watch import watch_loop


def settle() -> None:
    """Keep what is loaded out of the garbage collector's walks, and have the process end if its event loop hangs.

    The collector would walk what stays, again and again, in pauses that every stream waits for. To be called on
    the running loop.
    """
    gc.freeze()
    watch_loop()
