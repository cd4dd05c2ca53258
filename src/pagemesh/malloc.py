"""Keeps the memory of messages in the process: what one message of a KV stream frees, the next one takes.

glibc hands large pieces back to the system as soon as they are free, and gets new pages, zeroed one by
one, for the next ones. At a message of 1 MiB after the other that can cost more than all else, above
all on a virtual machine, where page faults are dear.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_LARGEST_PIECE: Final = 32 * 2**20
"""Bytes; pieces up to here come from malloc's arena. The most that glibc allows."""

_KEPT_FREE: Final = 128 * 2**20
"""Bytes at the end of malloc's arena that may be free before they go back: a few streams' messages."""

_GROWTH: Final = 16 * 2**20
"""Bytes by which malloc's arena grows beyond what is asked for."""

# Of malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> None:
    """Have this process keep what it frees, up to a bound; once, at its start. Only glibc needs it."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in (
        (_M_MMAP_THRESHOLD, _LARGEST_PIECE),
        (_M_TRIM_THRESHOLD, _KEPT_FREE),
        (_M_TOP_PAD, _GROWTH),
    ):
        mallopt(option, value)


def give_back_freed_memory() -> None:
    """Give the system what is free now, after something large that does not come again. Only glibc does it."""
    if sys.platform != "linux":
        return
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
