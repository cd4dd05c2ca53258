"""Where a row's sums begin anew, as a function of absolute positions alone. No torch."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

NEVER: Final = 1 << 30


class Segments(NamedTuple):
    """Segments of keys, short where a sequence begins. Counted in keys, or in tiles of keys."""

    first: int
    """Length of the first ones, a power of 2."""

    doubled_from: int = NEVER
    """Where segments are twice as long, a multiple of that length."""

    quadrupled_from: int = NEVER
    """Where they are four times as long, a multiple of that length, not before `doubled_from`."""

    def in_tiles(self, num_keys: int) -> Segments:
        """Those of keys, counted in tiles."""
        return Segments(*(places // num_keys for places in self))

    def numbers_of(self, places: Ints) -> Ints:
        """Which segment a place is in."""
        first, doubled_from, quadrupled_from = self
        numbers: Ints = np.minimum(places, doubled_from) // first
        numbers += np.maximum(np.minimum(places, quadrupled_from) - doubled_from, 0) // (2 * first)
        numbers += np.maximum(places - quadrupled_from, 0) // (4 * first)
        return numbers
