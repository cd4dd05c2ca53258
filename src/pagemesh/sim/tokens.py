"""Times between tokens, by the million: counted in classes of equal ratio."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

_CLASSES_PER_E: Final = 100
"""So that a percentile is right within half a percent."""


class TokenTimes:
    """How often each time between two tokens of a request came."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.num_gaps = 0

    def add(self, num_gaps: int, seconds: float) -> None:
        """So many tokens came, each so many seconds after the one in front of it."""
        self._counts[round(_CLASSES_PER_E * math.log(max(seconds, 1e-9)))] += num_gaps
        self.num_gaps += num_gaps

    def percentile(self, share: float) -> float | None:
        """The time that this share of all does not exceed; None without any."""
        wanted = share * self.num_gaps
        for number in sorted(self._counts):
            wanted -= self._counts[number]
            if wanted <= 0:
                return math.exp(number / _CLASSES_PER_E)
        return None
