"""Bits of the index in memory: given to workers, taken from them, swept, given again."""

from __future__ import annotations

from pagemesh.kvstore.memory_table import STAMP_BITS, BlockTable

VISITS_PER_BLOCK = 8
"""Blocks that may be looked at for each one that may be freed; looking is so much cheaper."""


class Bits:
    """A bit that was given back is given again once no block has it any more."""

    def __init__(self, table: BlockTable) -> None:
        self._table = table
        self.num_bits = 0
        self._free: list[int] = []
        # Bits to be swept in the next round, bits that are swept in this one, and how far that is.
        self._retired: list[int] = []
        self._sweeping: list[int] = []
        self._num_searched = 0
        self._stale: list[bytes] = []

    @property
    def num_retired(self) -> int:
        """Bits that blocks may still have."""
        return len(self._retired) + len(self._sweeping)

    def take(self) -> int:
        """A bit that no block has."""
        if self._free:
            return self._free.pop()
        self.num_bits += 1
        return 1 << (STAMP_BITS + self.num_bits - 1)

    def give_back(self, bit: int, *, is_used: bool) -> None:
        """Take a bit back; whether blocks have it."""
        (self._retired if is_used else self._free).append(bit)

    def sweep(self, max_blocks: int) -> bool:
        """Take retired bits out of so many blocks at most; whether there is more to do.

        All of them go in one round through the blocks, however many they are.
        """
        if not self._sweeping:
            self._sweeping, self._retired = self._retired, []
        while self._sweeping and max_blocks > 0:
            if self._stale:
                part = self._stale[-max_blocks:]
                del self._stale[-max_blocks:]
                max_blocks -= len(self._table.discard(sum(self._sweeping), part)) or 1
            elif self._num_searched < len(self._table.shards):
                shard = self._table.shards[self._num_searched]
                bits = sum(self._sweeping)
                self._stale = [block for block, value in shard.items() if value & bits]
                self._num_searched += 1
                max_blocks -= len(shard) // VISITS_PER_BLOCK
            else:
                self._free += self._sweeping
                self._sweeping, self._retired = self._retired, []
                self._num_searched = 0
        return bool(self._sweeping)

    def check_integrity(self, live: set[int]) -> None:
        """Raise AssertionError unless every bit is where it belongs; for tests."""
        bits = sorted([*live, *self._retired, *self._sweeping, *self._free])
        assert bits == [1 << (STAMP_BITS + i) for i in range(self.num_bits)], (
            "a bit was lost or doubled"
        )
        allowed = sum(live) + sum(self._retired) + sum(self._sweeping)
        for shard in self._table.shards:
            for value in shard.values():
                assert value >> STAMP_BITS, "a block is nobody's"
                assert not value >> STAMP_BITS << STAMP_BITS & ~allowed, "a block has a free bit"
