"""How many sequences of this router may be on the workers of one model at a time, and how many are."""

from __future__ import annotations

import math
from typing import Final

from pagemesh.router.dispatch.drain_rate import DrainRate
from pagemesh.router.dispatch.model_workers import ModelWorkers

LOOK_S: Final = 0.05
"""Seconds between two looks at the workers: what this router sends and gets back counts at once."""

AHEAD_S: Final = 0.05
"""Seconds of work that may queue on workers, so that none runs dry until it is sent more."""

MIN_AHEAD: Final = 2
"""Requests for each worker that may do so at least."""


class Seating:
    """Knows the time from its callers alone."""

    def __init__(self, workers: ModelWorkers, num_routers: int) -> None:
        self._workers = workers
        # A second one may have come to be without anybody saying so.
        self._num_routers = max(2, num_routers)
        self._most = 0
        self._looked_at = -math.inf
        self.num_seated = 0
        """Sequences that were let through and have not ended; counted by whoever lets them through."""
        self.nobody_since: float | None = None
        """Since when there has been no worker; None while there is one."""

    def has_room(self, now: float, drain: DrainRate) -> bool:
        """Whether one more may go: a large one, too, or it would wait for ever."""
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._most = self._look(now, drain)
        return self.num_seated < self._most

    def _look(self, now: float, drain: DrainRate) -> int:
        num_workers, num_seats, num_others = self._workers.seats()
        if not num_workers:
            if self.nobody_since is None:
                self.nobody_since = now
            # It is not believed for long.
            self._looked_at = -math.inf
            return 0
        self.nobody_since = None
        num_ahead = math.ceil((drain.seats_per_second(now) or 0.0) * AHEAD_S)
        own_part = max(num_seats - num_others, num_seats // self._num_routers)
        return own_part + max(MIN_AHEAD * num_workers, num_ahead)
