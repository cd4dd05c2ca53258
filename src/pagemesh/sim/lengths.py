"""Draws that workloads have in common: lengths, and which of several things."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from typing import Final

MAX_PROMPT_TOKENS: Final = 65_536
"""Longest piece of a prompt that is drawn."""

MAX_OUTPUT_TOKENS: Final = 4096
"""Longest answer that is drawn."""


def draw_length(draws: random.Random, median: float, sigma: float, most: int) -> int:
    """A number of tokens, log-normal, from 1 on."""
    return min(most, max(1, round(draws.lognormvariate(math.log(median), sigma))))


class Zipf:
    """Numbers from 0 on, the n-th of which comes in proportion to 1 / n**exponent; all alike with 0."""

    def __init__(self, count: int, exponent: float) -> None:
        self._sums = list(itertools.accumulate(n**-exponent for n in range(1, count + 1)))

    def draw(self, draws: random.Random) -> int:
        """One of them."""
        return bisect.bisect_left(self._sums, draws.random() * self._sums[-1])
