"""Metrics of a block index, measured around it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.kvstore.index import NOTHING_HELD, BlockIndex, IndexUsage
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import kvstore as declared


class InstrumentedIndex:
    """A `BlockIndex` that passes every call on and measures it."""

    def __init__(self, inner: BlockIndex, metrics: Metrics) -> None:
        self._inner = inner
        self._lookup_seconds = metrics.histogram(declared.INDEX_LOOKUP_SECONDS)
        self._stored = metrics.counter(declared.INDEX_BLOCKS_STORED)
        self._removed = metrics.counter(declared.INDEX_BLOCKS_REMOVED)
        self._refused = metrics.counter(declared.INDEX_BLOCKS_REFUSED)
        self._evicted = metrics.counter(declared.INDEX_BLOCKS_EVICTED)
        self._distinct = metrics.gauge(declared.INDEX_DISTINCT_BLOCKS)
        self._held = metrics.gauge(declared.INDEX_BLOCKS)
        self._bytes = metrics.gauge(declared.INDEX_BYTES)
        self._bytes_per_block = metrics.gauge(declared.INDEX_BYTES_PER_BLOCK)
        self._num_evicted = 0

    async def add_worker(
        self, worker_id: str, max_blocks: int, held: CacheDigest = NOTHING_HELD
    ) -> bool:
        return await self._inner.add_worker(worker_id, max_blocks, held)

    async def drop_worker(self, worker_id: str) -> None:
        await self._inner.drop_worker(worker_id)

    async def store(self, worker_id: str, block_hashes: Sequence[bytes]) -> bool:
        fits = await self._inner.store(worker_id, block_hashes)
        (self._stored if fits else self._refused).inc(len(block_hashes))
        return fits

    async def remove(self, worker_id: str, block_hashes: Sequence[bytes]) -> None:
        await self._inner.remove(worker_id, block_hashes)
        self._removed.inc(len(block_hashes))

    async def clear(self, worker_id: str) -> None:
        await self._inner.clear(worker_id)

    async def lookup(self, block_hashes: Sequence[bytes]) -> dict[str, int]:
        start = time.perf_counter()
        holders = await self._inner.lookup(block_hashes)
        self._lookup_seconds.observe(time.perf_counter() - start)
        return holders

    async def count(self, worker_id: str) -> int:
        return await self._inner.count(worker_id)

    async def digest(self, worker_id: str) -> CacheDigest:
        return await self._inner.digest(worker_id)

    async def count_held(self, worker_id: str, block_hashes: Sequence[bytes]) -> int:
        return await self._inner.count_held(worker_id, block_hashes)

    async def snapshot(self, worker_id: str) -> frozenset[bytes]:
        return await self._inner.snapshot(worker_id)

    async def tidy(self, max_blocks: int) -> bool:
        return await self._inner.tidy(max_blocks)

    async def usage(self) -> IndexUsage:
        """See `BlockIndex`. What it says is published."""
        usage = await self._inner.usage()
        self._distinct.set(usage.num_blocks)
        self._held.set(usage.num_held)
        self._bytes.set(usage.num_bytes)
        self._bytes_per_block.set(usage.num_bytes / max(1, usage.num_blocks))
        self._evicted.inc(usage.num_evicted - self._num_evicted)
        self._num_evicted = usage.num_evicted
        return usage
