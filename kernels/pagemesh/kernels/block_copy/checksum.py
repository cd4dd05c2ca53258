"""A checksum that is computed in any order, so that many programs can while they copy. No torch.

Each word of eight bytes is mixed with its place by the finalizer of splitmix64 (Steele, Lea and Flood 2014,
"Fast splittable pseudorandom number generators"), and the results are added modulo 2^64, as in the
incremental hashes of Bellare and Micciancio (1997). What it detects is in docs/decisions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

PLACE: Final = 0x9E3779B97F4A7C15
FIRST: Final = 0xBF58476D1CE4E5B9
SECOND: Final = 0x94D049BB133111EB
WORD_BYTES: Final = 8

_WORDS_AT_ONCE: Final = 1 << 16  # that stay in a core's second-level cache


def checksum_of(payload: bytes | memoryview | npt.NDArray[np.uint8], first_word: int = 0) -> int:
    """The checksum of bytes that begin at some word of a payload; parts add up, modulo 2^64.

    ValueError unless they are whole words of eight bytes.
    """
    data = np.frombuffer(payload, np.uint8)
    if len(data) % WORD_BYTES:
        raise ValueError(f"{len(data)} bytes are not whole words of {WORD_BYTES}")
    words = data.view("<u8")
    total = 0
    for begin in range(0, len(words), _WORDS_AT_ONCE):
        part = words[begin : begin + _WORDS_AT_ONCE]
        begins_at = np.uint64(first_word + begin + 1)
        mixed = (np.arange(len(part), dtype=np.uint64) + begins_at) * np.uint64(PLACE)
        mixed ^= part
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(FIRST)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(SECOND)
        mixed ^= mixed >> np.uint64(31)
        total += int(mixed.sum(dtype=np.uint64))
    return total & 0xFFFFFFFFFFFFFFFF
