"""Whether an engine's process lives: it says so once a second, and its worker ends one that does not.

On a socket pair of their own, and on threads: a worker that waits for room in the pipe to an engine that
froze could neither ask nor listen.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

import structlog

from pagemesh.errors import InternalError

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

BEAT_INTERVAL: Final = 1.0
"""Seconds between two beats."""

SILENCE_LIMIT: Final = 15
"""Beats in a row without which an engine's process is taken to be frozen: more than it misses on a machine
that is overloaded or swaps, as an engine that is ended by mistake has to load its model again."""

_FAILED: Final = 1


def start_beating(descriptor: int, check: Callable[[], None], stop: threading.Event) -> None:
    """The engine's end: say on a thread that the process lives, until told to stop.

    And end the process when `check` raises InternalError: an engine that will never answer must not look
    as if it might.
    """

    def beat() -> None:
        with closing(socket.socket(fileno=descriptor)) as end:
            end.setblocking(False)
            while not stop.wait(BEAT_INTERVAL):
                try:
                    check()
                    end.send(b"\0")
                except InternalError as error:
                    if not stop.is_set():
                        log.critical("the engine ends itself", error=error.message)
                        os._exit(_FAILED)
                except BlockingIOError:
                    # The worker is frozen: what it has not read says enough.
                    continue
                except OSError:
                    return

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()


def watch_beats(descriptor: int, kill: Callable[[], None], silence_limit: int) -> None:
    """The worker's end: call `kill` on a thread after so many seconds without a beat.

    The thread ends with the process at the other end.
    """

    def watch() -> None:
        with closing(socket.socket(fileno=descriptor)) as end:
            # Seconds of this thread's own time: after this process was stopped, the other one gets as many.
            num_missed = 0
            while num_missed < silence_limit:
                if not select.select([end], [], [], BEAT_INTERVAL)[0]:
                    num_missed += 1
                elif end.recv(1024):
                    num_missed = 0
                else:
                    return
            log.critical("the engine is ended: its process is frozen", silent_seconds=num_missed)
            kill()

    threading.Thread(target=watch, name="heartbeat-watch", daemon=True).start()
