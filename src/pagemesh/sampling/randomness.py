"""Uniform draws as a pure function of (seed, position), so that no history has to be kept or replayed.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011,
https://doi.org/10.1145/2063384.2063405).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_NUM_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# Columns against the words of all draws: [2, 1].
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
# The key of each round is the seed plus a multiple of the Weyl constants: [rounds, 2, 1].
_KEY_STEPS = (
    np.arange(_NUM_ROUNDS, dtype=np.uint64)[:, None, None]
    * np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
) & _LOW


def uniform_draws(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per pair of a 64-bit seed and a 64-bit position, with 53 random bits each."""
    words = philox(
        _halves(seeds), np.concatenate([_halves(positions), np.zeros_like(_halves(seeds))])
    )
    bits = (words[0] << _HALF | words[1]) >> np.uint64(11)
    draws: npt.NDArray[np.float64] = bits * 2.0**-53
    return draws


def philox(
    keys: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Philox4x32-10 of each column: 32-bit words as uint64, keys [2, n], counters [4, n] → [4, n]."""
    round_keys = (_KEY_STEPS + keys) & _LOW
    even, odd = counters[0::2], counters[1::2]
    for round_key in round_keys:
        products = _MULTIPLIERS * even
        even = (products >> _HALF)[::-1] ^ odd ^ round_key
        odd = (products & _LOW)[::-1]
    return np.stack([even[0], odd[0], even[1], odd[1]])


def _halves(values: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Low and high 32-bit words, [2, n]."""
    whole = np.array(values, dtype=np.uint64)
    return np.stack([whole & _LOW, whole >> _HALF])
