"""Writes log lines on a thread of its own: whoever logs never waits for whoever reads, nor for a disk."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from typing import Final

MOST_WAITING: Final = 10_000
"""Lines that wait to be written; further ones are dropped."""

FLUSH_S: Final = 1.0
"""For what is still to be written when the process ends."""


class LogWriter(logging.Handler):
    """Drops what cannot be written: on a full disk, or into a pipe that nobody reads.

    How many lines were lost is logged as soon as lines can be written again.
    """

    def __init__(self, file: int) -> None:
        """`file` is an open file descriptor."""
        super().__init__()
        # Past Python's own buffers: a thread that is stuck in one keeps the process from ending.
        self._file = file
        self._lines: queue.Queue[str] = queue.Queue(MOST_WAITING)
        # Each is counted by one side: those who log, one at a time, or the thread that writes.
        self._num_dropped = 0
        self._num_failed = 0
        self._num_told = 0
        threading.Thread(target=self._write_all, name="log-writer", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line, which is made now: it tells of the moment."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._num_dropped += 1
        except Exception:
            # What every handler does with a record that it cannot format.
            self.handleError(record)

    def flush(self) -> None:
        """Wait until everything is written, but not for long. `logging` calls it at the process's end."""
        deadline = time.monotonic() + FLUSH_S
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.002)

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            num_lost = self._num_dropped + self._num_failed - self._num_told
            if num_lost:
                line = f"{self._loss(num_lost)}\n{line}"
            if self._write(line):
                self._num_told += num_lost
            else:
                self._num_failed += 1
            self._lines.task_done()

    def _write(self, line: str) -> bool:
        """Whether it could be written, all of it."""
        rest = f"{line}\n".encode(errors="backslashreplace")
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            return False
        return True

    def _loss(self, count: int) -> str:
        text = f"{count} log lines were lost: the disk was full, or nobody read them"
        return self.format(logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None))
