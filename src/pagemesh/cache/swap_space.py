"""The swap space: blocks of host memory for the KV of preempted requests. Knows ids only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


class SwapSpace:
    """Hands out swap blocks; each has one holder and no name. Not thread-safe: one thread owns it."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def can_allocate(self, num_blocks: int) -> bool:
        """Whether so many blocks are free."""
        return num_blocks <= len(self._free)

    def allocate(self, num_blocks: int) -> list[int]:
        """Hold so many blocks; ask `can_allocate` first."""
        assert self.can_allocate(num_blocks), f"{num_blocks} wanted of {len(self._free)}"
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
