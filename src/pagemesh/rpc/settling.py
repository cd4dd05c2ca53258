"""What a process does when it has loaded everything and serves from now on, and what ends it when its loop stands still.

gRPC would answer the pings of a process with such a loop all the same, and whoever waits for it waits until a deadline.
Once it is gone, its streams break, and what it had begun goes on elsewhere.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import traceback
from typing import Final

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOOK_INTERVAL: Final = 1.0
"""Seconds between two questions to the loop."""

SILENCE_LIMIT: Final = 20
"""Questions in a row without an answer after which the loop hangs. Nothing that it runs takes a second."""

FLUSH_S: Final = 0.5
"""For the log to be written."""

_FAILED: Final = 1


def watch_loop(interval: float = LOOK_INTERVAL, silence_limit: int = SILENCE_LIMIT) -> None:
    """Watch the running loop, on a thread, until the process ends.

    Time counts in looks of that thread: after the process was stopped, its loop gets as many as ever.
    """
    loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()
    answered, pause = threading.Event(), threading.Event()

    def watch() -> None:
        num_missed = 0
        while num_missed < silence_limit:
            answered.clear()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                # It is closed: the process is about to end.
                return
            num_missed = 0 if answered.wait(interval) else num_missed + 1
            if not num_missed:
                pause.wait(interval)
        stack = "".join(traceback.format_stack(sys._current_frames().get(loop_thread)))
        log.critical("the process ends itself: its event loop hangs", stack=stack)
        pause.wait(FLUSH_S)
        os._exit(_FAILED)

    threading.Thread(target=watch, name="loop-watch", daemon=True).start()


def settle() -> None:
    """Keep what is loaded out of the garbage collector's walks, and have the process end if its event loop hangs.

    The collector would walk what stays, again and again, in pauses that every stream waits for. To be called on
    the running loop.
    """
    gc.freeze()
    watch_loop()
