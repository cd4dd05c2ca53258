"""Seeds for requests that bring none."""

from __future__ import annotations

import random

_NUM_BITS = 63


class Seeds:
    """Drawn by chance, or one after the other from a seed of their own: the first request then gets what the first
    one got the last time, and so on."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.SystemRandom() if seed is None else random.Random(seed)

    def draw(self) -> int:
        """The next one, of 63 bits."""
        return self._random.getrandbits(_NUM_BITS)
