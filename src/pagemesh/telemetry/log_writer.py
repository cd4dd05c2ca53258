"""Writes log lines on a thread of its own: a caller never waits for a reader of the logs, nor for a disk."""

from __future__ import annotations

import logging
import os
import queue
import time
from logging.handlers import QueueHandler, QueueListener
from typing import Final

MOST_WAITING: Final = 10_000
"""Lines that wait to be written; further ones are dropped."""

FLUSH_S: Final = 1.0
"""For what is still to be written when the process ends."""


class LogWriter(QueueHandler):
    """Drops what cannot be written: on a full disk, or into a pipe that nobody reads.

    How many lines were lost is logged as soon as lines can be written again.
    """

    def __init__(self, file: int) -> None:
        """`file` is an open file descriptor."""
        self._lines: queue.Queue[logging.LogRecord] = queue.Queue(MOST_WAITING)
        super().__init__(self._lines)
        self.num_dropped = 0
        _FileWriter(self._lines, file, self).start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Take a record, which is formatted by now: it tells of the moment."""
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self.num_dropped += 1

    def flush(self) -> None:
        """Wait until everything is written, but not for long. `logging` calls it at the process's end."""
        deadline = time.monotonic() + FLUSH_S
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.002)


class _FileWriter(QueueListener):
    """Writes itself: a handler would hold its lock in a write that never ends, and `logging` wait for it at the end."""

    def __init__(
        self, lines: queue.Queue[logging.LogRecord], file: int, handler: LogWriter
    ) -> None:
        super().__init__(lines)
        # Past Python's own buffers: a thread that is stuck in one keeps the process from ending.
        self._file = file
        self._handler = handler
        self._num_failed = 0
        self._num_told = 0

    def handle(self, record: logging.LogRecord) -> None:
        """Write a line, and in front of it how many were lost."""
        line = record.getMessage()
        num_lost = self._handler.num_dropped + self._num_failed - self._num_told
        if num_lost:
            line = f"{self._loss(num_lost)}\n{line}"
        if self._write(line):
            self._num_told += num_lost
        else:
            self._num_failed += 1

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
        lost = logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None)
        return self._handler.format(lost)
