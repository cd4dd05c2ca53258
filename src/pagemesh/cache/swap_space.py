"""The swap space: blocks of host memory for the KV of preempted requests. Knows ids only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class SwapTotals(NamedTuple):
    """The swap space at one moment, and how often it was used."""

    num_blocks: int = 0
    num_used_blocks: int = 0
    num_preemptions: int = 0
    """Requests whose KV was put into it, since the engine was started."""

    @property
    def usage(self) -> float:
        """Share of the blocks that are held; 0 of none."""
        return self.num_used_blocks / self.num_blocks if self.num_blocks else 0.0


class SwapSpace:
    """Hands out swap blocks; each has one holder and no hash. Not thread-safe: one thread owns it."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_preemptions = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def totals(self) -> SwapTotals:
        """What is held now, and how often something was."""
        num_used = self.num_blocks - len(self._free)
        return SwapTotals(self.num_blocks, num_used, self._num_preemptions)

    def can_allocate(self, num_blocks: int) -> bool:
        """Whether so many blocks are free."""
        return num_blocks <= len(self._free)

    def allocate(self, num_blocks: int) -> list[int]:
        """Hold so many blocks for a request's KV; ask `can_allocate` first."""
        assert self.can_allocate(num_blocks), f"{num_blocks} wanted of {len(self._free)}"
        self._num_preemptions += 1
        return [self._free.pop() for _ in range(num_blocks)]

    def free(self, block_ids: Sequence[int]) -> None:
        """Give blocks back."""
        self._free += reversed(block_ids)

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Assert that every block is either free or held by exactly one of the tables."""
        holders = Counter(self._free)
        for table in tables:
            holders.update(table)
        assert holders == Counter(range(self.num_blocks)), "a swap block is lost or held twice"
