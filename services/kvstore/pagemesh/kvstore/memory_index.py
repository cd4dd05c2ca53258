"""The block index in the memory of one process.

Every worker has a bit, every block an int with the bits of its holders, so that a lookup is an AND
down the chain. A worker that is dropped or cleared only loses its bit; the bit is used again once it
was taken out of all blocks, which happens in slices.

`Bits` gives bits to workers, takes them, sweeps them and gives them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagemesh.cache.block_hash import CacheDigest, xor_hashes
from pagemesh.kvstore.index import NOTHING_HELD, IndexUsage, not_indexed
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


MAX_RETIRED = 64
"""Bits that may wait to be swept; who needs another one then has to sweep first, or masks would grow without
end at the hands of a worker that clears its cache all the time."""

SWEEP_SLICE = 2048
"""Blocks that are swept or searched between two turns of the event loop: about a millisecond."""

SNAPSHOT_SLICE = 50_000


@dataclass(slots=True)
class _Slot:
    """A worker's bit, and what the worker said it holds."""

    bit: int
    max_blocks: int
    num_blocks: int = 0
    num_evicted: int = 0
    """How many of them are no longer in the index."""
    names_xor: int = 0


class MemoryIndex:
    """A `BlockIndex` of dicts and bit masks. It waits for nothing but, with many blocks, its turn."""

    def __init__(self, *, max_blocks: int = 0) -> None:
        """`max_blocks` distinct blocks are kept at most, 0 for all that the workers announce."""
        self._table = BlockTable(max_blocks)
        self._bits = Bits(self._table)
        self._slots: dict[str, _Slot] = {}
        self._worker_ids: dict[int, str] = {}
        self._live_mask = 0
        self._num_evicted = 0

    async def add_worker(
        self, worker_id: str, max_blocks: int, held: CacheDigest = NOTHING_HELD
    ) -> bool:
        if worker_id in self._slots and held == await self.digest(worker_id):
            self._slots[worker_id].max_blocks = max_blocks
            return True
        await self.drop_worker(worker_id)
        has_more = self._bits.num_retired >= MAX_RETIRED
        while has_more:
            has_more = self._bits.sweep(SWEEP_SLICE)
            await asyncio.sleep(0)
        bit = self._bits.take()
        self._slots[worker_id] = _Slot(bit, max_blocks)
        self._worker_ids[bit] = worker_id
        self._live_mask |= bit
        return held == NOTHING_HELD

    async def drop_worker(self, worker_id: str) -> None:
        slot = self._slots.pop(worker_id, None)
        if slot is not None:
            del self._worker_ids[slot.bit]
            self._live_mask &= ~slot.bit
            self._bits.give_back(slot.bit, is_used=slot.num_blocks > slot.num_evicted)

    async def store(self, worker_id: str, block_hashes: Sequence[bytes]) -> bool:
        slot = self._slot(worker_id)
        # Twice as much is freed as is added, so that a worker that clears and stores in turn cannot
        # pile up blocks faster than they are freed.
        self._bits.sweep(2 * len(block_hashes))
        values = self._table.without(slot.bit, block_hashes)
        if slot.num_blocks + len(values) > slot.max_blocks:
            return False
        self._table.add(slot.bit, values)
        slot.num_blocks += len(values)
        slot.names_xor ^= xor_hashes(values)
        for bits, num_blocks in self._table.evict().items():
            self._num_evicted += num_blocks
            for holder in _workers_of(bits & self._live_mask, self._worker_ids):
                self._slots[holder].num_evicted += num_blocks
        return True

    async def remove(self, worker_id: str, block_hashes: Sequence[bytes]) -> None:
        slot = self._slot(worker_id)
        blocks = dict.fromkeys(block_hashes)
        gone = self._table.discard(slot.bit, blocks)
        if slot.num_evicted:
            # Of the others, it had those that the index had given up.
            for block in gone:
                del blocks[block]
            absent = list(blocks)[: slot.num_evicted]
            slot.num_evicted -= len(absent)
            gone += absent
        slot.num_blocks -= len(gone)
        slot.names_xor ^= xor_hashes(gone)

    async def clear(self, worker_id: str) -> None:
        slot = self._slot(worker_id)
        if slot.num_blocks:
            await self.add_worker(worker_id, slot.max_blocks)

    async def lookup(self, block_hashes: Sequence[bytes]) -> dict[str, int]:
        holders = self._live_mask
        if not holders:
            return {}
        shards = self._table.by_last_byte
        num_held: dict[str, int] = {}
        depth = 0
        for block in block_hashes:
            still = holders & shards[block[-1]].get(block, 0)
            if still != holders:
                if depth:
                    lost = _workers_of(holders ^ still, self._worker_ids)
                    num_held.update(dict.fromkeys(lost, depth))
                holders = still
                if not still:
                    break
            depth += 1
        if depth:
            num_held.update(dict.fromkeys(_workers_of(holders, self._worker_ids), depth))
            self._table.use(block_hashes[:depth])
        return num_held

    async def count(self, worker_id: str) -> int:
        slot = self._slot(worker_id)
        return slot.num_blocks - slot.num_evicted

    async def digest(self, worker_id: str) -> CacheDigest:
        slot = self._slot(worker_id)
        return CacheDigest(slot.num_blocks, slot.names_xor)

    async def count_held(self, worker_id: str, block_hashes: Sequence[bytes]) -> int:
        bit = self._slot(worker_id).bit
        return len(block_hashes) - len(self._table.without(bit, block_hashes))

    async def snapshot(self, worker_id: str) -> frozenset[bytes]:
        """See `BlockIndex`. Looks at all blocks, some ten thousand at a time."""
        bit = self._slot(worker_id).bit
        hashes: list[bytes] = []
        num_visited = 0
        for shard in self._table.shards:
            hashes += [block for block, value in shard.items() if value & bit]
            num_visited += len(shard)
            if num_visited > SNAPSHOT_SLICE:
                num_visited = 0
                await asyncio.sleep(0)
        return frozenset(hashes)

    async def tidy(self, max_blocks: int) -> bool:
        return self._bits.sweep(max_blocks)

    async def usage(self) -> IndexUsage:
        num_held = sum(slot.num_blocks - slot.num_evicted for slot in self._slots.values())
        return IndexUsage(
            self._table.num_blocks, num_held, self._table.num_bytes(), self._num_evicted
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks, slots and bits agree; for tests."""
        live = {slot.bit: worker_id for worker_id, slot in self._slots.items()}
        assert live == self._worker_ids, "bits differ from workers"
        assert sum(live) == self._live_mask, "live mask differs from the live bits"
        self._bits.check_integrity(set(live))
        blocks = {b: value for shard in self._table.shards for b, value in shard.items()}
        assert len(blocks) == self._table.num_blocks, "blocks were counted wrongly"
        for slot in self._slots.values():
            held = [block for block, value in blocks.items() if value & slot.bit]
            assert len(held) == slot.num_blocks - slot.num_evicted, (
                "a count differs from its blocks"
            )
            if not slot.num_evicted:
                assert slot.names_xor == xor_hashes(held), "a digest differs from its blocks"

    def _slot(self, worker_id: str) -> _Slot:
        slot = self._slots.get(worker_id)
        if slot is None:
            raise not_indexed(worker_id)
        return slot


def _workers_of(mask: int, worker_ids: Mapping[int, str]) -> list[str]:
    """Workers of the bits in a mask."""
    workers = []
    while mask:
        bit = mask & -mask
        workers.append(worker_ids[bit])
        mask ^= bit
    return workers
