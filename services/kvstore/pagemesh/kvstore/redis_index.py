"""The block index in Redis or Valkey: several kvstores share it, and it outlives them.

A block is a small value with the bits of its holders. Workers have slots, and a slot names who may write it:
whoever was dropped or replaced writes nothing any more, however late its calls come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.kvstore.index import NOTHING_HELD, IndexUsage, not_indexed
from pagemesh.kvstore.redis_client import RedisScripts, RedisStore
from pagemesh.kvstore.redis_slots import LeadingHolders, RedisSlots, SlotTable

FORMAT = 1
"""Of what lies under the keys. Another one begins with nothing: what it cannot read it must not find."""

BUCKET_BITS = 17
"""Hashes that hold the blocks, as a power of two. With 10 million blocks each has 76, fewer than the 128 up to
which every Redis keeps them packed."""

BLOCKS_PER_CALL = 256
"""Blocks in one script; Redis does nothing else for its time, about two milliseconds."""

FIRST_LOOKUP = 256
"""Blocks in the first script of a lookup, which ends at the first that nobody has. Nearly all prompts need no
other, and a call costs as much as some fifty blocks."""

NEXT_LOOKUPS = 1024
"""Blocks in each further script."""

_NOT_MINE, _TOO_MANY = -1, -2


class RedisIndex:
    """A `BlockIndex` on a server that others use at the same time.

    All calls raise UnavailableError while the server does not answer, but for `drop_worker`, which `tidy`
    then makes up for. One that was cancelled or not answered may have taken effect all the same; a worker
    whose `add_worker` or `clear` ended so is unknown.

    A worker is that of the index that added it last. To all others, and to this one where the server lost
    what it held, it is unknown; but `count`, `digest`, `count_held` and `snapshot` answer for all workers.
    """

    def __init__(
        self, store: RedisStore, *, max_blocks: int = 0, bucket_bits: int = BUCKET_BITS
    ) -> None:
        """`max_blocks` distinct blocks are kept at most, 0 for all that the workers announce.

        Those with other `bucket_bits` have an index of their own on the same server.
        """
        self._max_blocks = max_blocks
        self._scripts = RedisScripts(store, key_prefix(bucket_bits), bucket_bits)
        self._slots = RedisSlots(self._scripts)
        self._table = SlotTable()
        self._num_evicted = 0
        self._bytes_per_block = 0.0

    async def add_worker(
        self, worker_id: str, max_blocks: int, held: CacheDigest = NOTHING_HELD
    ) -> bool:
        """See `BlockIndex`. What other indexes kept of it counts as well."""
        return await self._slots.add(worker_id, max_blocks, held)

    async def drop_worker(self, worker_id: str) -> None:
        """See `BlockIndex`. One that another index added meanwhile stays."""
        await self._slots.drop(worker_id)

    async def store(self, worker_id: str, block_hashes: Sequence[bytes]) -> bool:
        self._slots.own(worker_id)
        hashes = list(dict.fromkeys(block_hashes))
        if len(hashes) > BLOCKS_PER_CALL and not await self._has_room(worker_id, hashes):
            return False
        for part in _parts(hashes):
            answer = await self._slots.write("store", worker_id, part, self._max_blocks)
            if answer == _TOO_MANY:
                return False
            self._num_evicted += answer
        return True

    async def remove(self, worker_id: str, block_hashes: Sequence[bytes]) -> None:
        self._slots.own(worker_id)
        for part in _parts(block_hashes):
            await self._slots.write("remove", worker_id, part)

    async def clear(self, worker_id: str) -> None:
        await self._slots.renew(worker_id)

    async def lookup(self, block_hashes: Sequence[bytes]) -> dict[str, int]:
        holders = LeadingHolders()
        start, size, has_more = 0, FIRST_LOOKUP, True
        while has_more and start < len(block_hashes):
            part = block_hashes[start : start + size]
            table = self._table
            version, workers, packed = await self._scripts.run(
                "lookup", table.version, b"".join(part), self._max_blocks
            )
            if version != table.version:
                pairs = zip(workers[::2], workers[1::2], strict=True)
                table = SlotTable(version, {int(slot): name.decode() for slot, name in pairs})
                self._table = table
            has_more = holders.narrow(packed, table, len(part))
            start, size = start + size, NEXT_LOOKUPS
        return holders.result()

    async def count(self, worker_id: str) -> int:
        facts = await self._slots.facts(worker_id)
        return facts.num_blocks - facts.num_evicted

    async def digest(self, worker_id: str) -> CacheDigest:
        facts = await self._slots.facts(worker_id)
        return CacheDigest(facts.num_blocks, facts.names_xor)

    async def count_held(self, worker_id: str, block_hashes: Sequence[bytes]) -> int:
        slot = (await self._slots.facts(worker_id)).slot
        num_held = 0
        for part in _parts(block_hashes):
            num_in_part = await self._scripts.run_in_turn("count_held", *slot, part)
            if num_in_part == _NOT_MINE:
                raise not_indexed(worker_id)
            num_held += num_in_part
        return num_held

    async def snapshot(self, worker_id: str) -> frozenset[bytes]:
        """See `BlockIndex`. Reads the whole index, some hundred blocks at a time."""
        slot = (await self._slots.facts(worker_id)).slot
        hashes: list[bytes] = []
        bucket, is_last = 0, False
        while not is_last:
            bucket, packed, is_last = await self._scripts.run_in_turn(
                "held", *slot, bucket, BLOCKS_PER_CALL
            )
            if bucket == _NOT_MINE:
                raise not_indexed(worker_id)
            hashes += (packed[at : at + 16] for at in range(0, len(packed), 16))
        return frozenset(hashes)

    async def tidy(self, max_blocks: int) -> bool:
        """See `BlockIndex`. One of all that share the server sweeps at a time, the others have nothing to do."""
        has_late = await self._slots.drop_late()
        has_more, num_evicted = await self._slots.sweep(max_blocks, self._max_blocks)
        self._num_evicted += num_evicted
        return has_late or has_more

    async def usage(self) -> IndexUsage:
        """See `BlockIndex`. Bytes by what Redis says of some dozens of the hashes."""
        num_blocks, num_held, sampled_bytes, sampled_blocks = await self._scripts.run("usage")
        if sampled_blocks:
            self._bytes_per_block = sampled_bytes / sampled_blocks
        num_bytes = round(num_blocks * self._bytes_per_block)
        return IndexUsage(num_blocks, num_held, num_bytes, self._num_evicted)

    async def _has_room(self, worker_id: str, hashes: Sequence[bytes]) -> bool:
        async with self._scripts.turns:
            facts = await self._slots.facts(worker_id)
        room = facts.max_blocks - facts.num_blocks
        return len(hashes) <= room or len(hashes) - await self.count_held(worker_id, hashes) <= room


def key_prefix(bucket_bits: int) -> str:
    """What all keys of an index begin with."""
    return f"pagemesh:index:{FORMAT}.{bucket_bits}:"


def _parts(hashes: Sequence[bytes]) -> Iterator[bytes]:
    """Block hashes as scripts take them."""
    for start in range(0, len(hashes), BLOCKS_PER_CALL):
        yield b"".join(hashes[start : start + BLOCKS_PER_CALL])
