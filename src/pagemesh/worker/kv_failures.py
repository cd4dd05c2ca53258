"""Which workers did not deliver KV to this one, for whoever asks what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

MAX_SENDERS: Final = 64
"""Senders that are remembered; the one that failed longest ago goes first."""


class KvFailure(NamedTuple):
    """What one sender has to answer for."""

    worker_id: str
    num_failures: int
    message: str
    """Of the last one."""
    failed_at: float


class KvFailures:
    """The failures of one worker's senders. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._failures: dict[str, KvFailure] = {}

    def note(self, worker_id: str, message: str) -> None:
        """A sender did not deliver."""
        before = self._failures.pop(worker_id, None)
        count = 1 if before is None else before.num_failures + 1
        self._failures[worker_id] = KvFailure(worker_id, count, message, self.clock())
        if len(self._failures) > MAX_SENDERS:
            del self._failures[next(iter(self._failures))]

    def all(self) -> list[KvFailure]:
        """Of all senders, those that failed last at the end."""
        return list(self._failures.values())
