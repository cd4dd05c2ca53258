"""How long to wait before the next attempt of something that is tried forever."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.05
LONGEST_S: Final = 0.5
"""A kvstore that was started again is to know everything within two seconds."""


class Backoff:
    """Waits that double from `FIRST_S` to `LONGEST_S`, each cut by up to half at random.

    The random cut keeps the peers of a restarted kvstore from coming back at the same moment.
    """

    def __init__(self) -> None:
        self._next = FIRST_S

    def next_delay(self) -> float:
        """Seconds to wait now; the following wait will be twice as long."""
        delay = self._next
        self._next = min(LONGEST_S, self._next * 2)
        return delay * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again with the shortest wait, after an attempt that worked."""
        self._next = FIRST_S
