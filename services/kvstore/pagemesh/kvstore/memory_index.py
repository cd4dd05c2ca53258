"""The block index in the memory of one process.

Every worker has a bit, every block an int with the bits of its holders, so that a lookup is an AND
down the chain. A worker that is dropped or cleared only loses its bit; the bit is used again once it
was taken out of all blocks, which happens in slices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagemesh.cache.digest import CacheDigest, xor_names
from pagemesh.errors import FailedPreconditionError


@dataclass(slots=True)
class _Slot:
    """One bit and the blocks whose masks have it."""

    bit: int
    max_blocks: int
    blocks: set[bytes] = field(default_factory=set)
    names_xor: int = 0
    """Of the blocks, as long as the slot is a worker's."""


class MemoryIndex:
    """A `BlockIndex` of dicts and bit masks. None of its methods ever waits."""

    def __init__(self) -> None:
        self._masks: dict[bytes, int] = {}
        self._slots: dict[str, _Slot] = {}
        self._worker_ids: dict[int, str] = {}
        self._live_mask = 0
        # Slots whose bits are still in masks, oldest first, and bits that are in none.
        self._retired: deque[_Slot] = deque()
        self._free_bits: list[int] = []
        self._num_bits = 0

    async def add_worker(self, worker_id: str, max_blocks: int) -> None:
        """See `BlockIndex`."""
        await self.drop_worker(worker_id)
        if self._free_bits:
            bit = self._free_bits.pop()
        else:
            bit = 1 << self._num_bits
            self._num_bits += 1
        self._slots[worker_id] = _Slot(bit, max_blocks)
        self._worker_ids[bit] = worker_id
        self._live_mask |= bit

    async def drop_worker(self, worker_id: str) -> None:
        """See `BlockIndex`."""
        slot = self._slots.pop(worker_id, None)
        if slot is None:
            return
        del self._worker_ids[slot.bit]
        self._live_mask &= ~slot.bit
        if slot.blocks:
            self._retired.append(slot)
        else:
            self._free_bits.append(slot.bit)

    async def store(self, worker_id: str, block_hashes: Sequence[bytes]) -> bool:
        """See `BlockIndex`."""
        slot = self._slot(worker_id)
        new_blocks = set(block_hashes) - slot.blocks
        if len(slot.blocks) + len(new_blocks) > slot.max_blocks:
            return False
        # Twice as much is freed as is added, so that a worker that clears and stores in turn cannot
        # pile up blocks faster than they are freed.
        await self.tidy(2 * len(new_blocks))
        masks, bit = self._masks, slot.bit
        for block in new_blocks:
            masks[block] = masks.get(block, 0) | bit
        slot.blocks |= new_blocks
        slot.names_xor ^= xor_names(new_blocks)
        return True

    async def remove(self, worker_id: str, block_hashes: Sequence[bytes]) -> None:
        """See `BlockIndex`."""
        slot = self._slot(worker_id)
        old_blocks = slot.blocks.intersection(block_hashes)
        for block in old_blocks:
            self._clear_bit(block, slot.bit)
        slot.blocks -= old_blocks
        slot.names_xor ^= xor_names(old_blocks)

    async def clear(self, worker_id: str) -> None:
        """See `BlockIndex`."""
        slot = self._slot(worker_id)
        if slot.blocks:
            await self.add_worker(worker_id, slot.max_blocks)

    async def lookup(self, block_hashes: Sequence[bytes]) -> dict[str, int]:
        """See `BlockIndex`."""
        masks = self._masks
        holders = self._live_mask
        num_held: dict[str, int] = {}
        for depth, block in enumerate(block_hashes):
            still = holders & masks.get(block, 0)
            if still != holders:
                if depth:
                    num_held.update(
                        dict.fromkeys(_workers_of(holders ^ still, self._worker_ids), depth)
                    )
                if not still:
                    return num_held
                holders = still
        if block_hashes:
            num_held.update(
                dict.fromkeys(_workers_of(holders, self._worker_ids), len(block_hashes))
            )
        return num_held

    async def count(self, worker_id: str) -> int:
        """See `BlockIndex`."""
        return len(self._slot(worker_id).blocks)

    async def digest(self, worker_id: str) -> CacheDigest:
        """See `BlockIndex`."""
        slot = self._slot(worker_id)
        return CacheDigest(len(slot.blocks), slot.names_xor)

    async def count_held(self, worker_id: str, block_hashes: Sequence[bytes]) -> int:
        """See `BlockIndex`."""
        return len(self._slot(worker_id).blocks.intersection(block_hashes))

    async def snapshot(self, worker_id: str) -> frozenset[bytes]:
        """See `BlockIndex`."""
        return frozenset(self._slot(worker_id).blocks)

    async def tidy(self, max_blocks: int) -> bool:
        """See `BlockIndex`."""
        while self._retired:
            slot = self._retired[0]
            for _ in range(min(max_blocks, len(slot.blocks))):
                self._clear_bit(slot.blocks.pop(), slot.bit)
                max_blocks -= 1
            if slot.blocks:
                return True
            self._retired.popleft()
            self._free_bits.append(slot.bit)
        return False

    def check_integrity(self) -> None:
        """Raise AssertionError unless masks, slots and bits agree; for tests."""
        masks: dict[bytes, int] = {}
        for slot in (*self._slots.values(), *self._retired):
            for block in slot.blocks:
                assert not masks.get(block, 0) & slot.bit, "two slots share a bit"
                masks[block] = masks.get(block, 0) | slot.bit
        assert masks == self._masks, "masks differ from the blocks of the slots"
        for slot in self._slots.values():
            assert slot.names_xor == xor_names(slot.blocks), "a digest differs from its blocks"
        live = {slot.bit: worker_id for worker_id, slot in self._slots.items()}
        assert live == self._worker_ids, "bits differ from workers"
        assert sum(live) == self._live_mask, "live mask differs from the live bits"
        bits = [*live, *(slot.bit for slot in self._retired), *self._free_bits]
        assert sorted(bits) == [1 << i for i in range(self._num_bits)], "a bit was lost or doubled"

    def _slot(self, worker_id: str) -> _Slot:
        slot = self._slots.get(worker_id)
        if slot is None:
            raise FailedPreconditionError(
                f"worker {worker_id!r} is not registered", reason="UNKNOWN_WORKER"
            )
        return slot

    def _clear_bit(self, block: bytes, bit: int) -> None:
        mask = self._masks[block] & ~bit
        if mask:
            self._masks[block] = mask
        else:
            del self._masks[block]


def _workers_of(mask: int, worker_ids: Mapping[int, str]) -> list[str]:
    """Workers of the bits in a mask."""
    workers = []
    while mask:
        bit = mask & -mask
        workers.append(worker_ids[bit])
        mask ^= bit
    return workers
