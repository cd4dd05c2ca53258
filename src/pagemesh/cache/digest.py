"""Two numbers that tell whether two caches hold blocks of the same names, kept up to date as blocks come
and go.

Names are hashes: the exclusive or of other names than those that are held is another number, but for one
case in 2**128. It finds mistakes, not forgeries.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import xor
from typing import NamedTuple


class CacheDigest(NamedTuple):
    """What a cache holds, in short; equal for equal sets of names."""

    num_blocks: int = 0
    """Blocks that it holds."""
    names_xor: int = 0
    """Exclusive or of their names, see `xor_names`."""


def xor_names(names: Iterable[bytes]) -> int:
    """Exclusive or of 16-byte names, each read as a big-endian number; 0 of none.

    To come and to leave change it alike. Each name has to be given once.
    """
    return reduce(xor, map(int.from_bytes, names), 0)
