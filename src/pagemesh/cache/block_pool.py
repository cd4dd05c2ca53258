"""The pool of KV blocks: who holds which, and which free ones still hold KV worth keeping.

A block is *held* (reference count above zero) or *free*. A block whose KV is complete can have a
block hash and then is found by it: that is the prefix cache. Free blocks keep their hashes until they are needed;
blocks without a hash are handed out first, then the least recently freed cached one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pagemesh.cache.block_hash import CacheDigest, xor_hashes


class CacheEvents(NamedTuple):
    """Net change of the prefix cache; a hash that came and went in between is in neither list."""

    stored: tuple[bytes, ...]
    removed: tuple[bytes, ...]


class BlockPool:
    """Reference counts, the prefix cache and its eviction order. Not thread-safe: one thread owns it."""

    def __init__(self, num_blocks: int, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self._enable_prefix_caching = enable_prefix_caching
        self._ref_counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}
        self._cached_xor = 0
        self._free_uncached = deque(range(num_blocks))
        self._free_cached: OrderedDict[int, None] = OrderedDict()  # least recently freed first
        self._stored: dict[bytes, None] = {}  # dicts as ordered sets
        self._removed: dict[bytes, None] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._free_uncached) + len(self._free_cached)

    def can_allocate(self, num_blocks: int, keeping: Iterable[int] = ()) -> bool:
        """Whether `num_blocks` are free besides those in `keeping`, which may be held or free."""
        num_kept = sum(self._ref_counts[block_id] == 0 for block_id in keeping)
        return num_blocks <= self.num_free_blocks - num_kept

    def allocate(self, num_blocks: int) -> list[int]:
        """Hold `num_blocks` blocks without a hash, evicting cached ones as needed; ask `can_allocate` first.

        In the order in which they lie in memory: whoever reads or copies them one after the other then
        meets as many neighbours as there are.
        """
        assert self.can_allocate(num_blocks), (
            f"{num_blocks} blocks wanted of {self.num_free_blocks}"
        )
        block_ids = sorted(self._take_free() for _ in range(num_blocks))
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def longest_cached_prefix(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Blocks that hold the KV of the longest leading run of hashes; `acquire` them to keep them."""
        block_ids: list[int] = []
        for block_hash in block_hashes:
            block_id = self._cached.get(block_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Hold blocks that are cached, or held by others, once more."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                del self._free_cached[block_id]
            self._ref_counts[block_id] += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """Hold the blocks of one table once less; the tail is evicted before the head that it needs."""
        for block_id in reversed(block_ids):
            assert self._ref_counts[block_id] > 0, f"block {block_id} is not held"
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] > 0:
                continue
            if self._hashes[block_id] is None:
                self._free_uncached.append(block_id)
            else:
                self._free_cached[block_id] = None

    def store(self, block_id: int, block_hash: bytes) -> None:
        """Enter a held block, whose KV is complete, into the prefix cache.

        When another block already has the hash, that one stays and this one remains without.
        """
        assert self._ref_counts[block_id] > 0, f"block {block_id} is not held"
        if not self._enable_prefix_caching or block_hash in self._cached:
            return
        assert self._hashes[block_id] is None, f"block {block_id} already has a hash"
        self._cached[block_hash] = block_id
        self._hashes[block_id] = block_hash
        self._cached_xor ^= int.from_bytes(block_hash)
        if block_hash in self._removed:
            del self._removed[block_hash]
        else:
            self._stored[block_hash] = None

    def cached_hashes(self) -> tuple[bytes, ...]:
        """Hashes of all cached blocks."""
        return tuple(self._cached)

    @property
    def cached_digest(self) -> CacheDigest:
        """Of the hashes of all cached blocks, whatever was told of them."""
        return CacheDigest(len(self._cached), self._cached_xor)

    def drain_events(self) -> CacheEvents:
        """What changed in the prefix cache since the last call."""
        events = CacheEvents(tuple(self._stored), tuple(self._removed))
        self._stored.clear()
        self._removed.clear()
        return events

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Assert that the pool is sound and that exactly `tables` hold its blocks."""
        holders = Counter(block_id for table in tables for block_id in table)
        free = [*self._free_uncached, *self._free_cached]
        assert len(free) == len(set(free)), "a block is free twice"
        for block_id, ref_count in enumerate(self._ref_counts):
            assert ref_count == holders[block_id], f"block {block_id}: wrong reference count"
        assert set(free) == {i for i, count in enumerate(self._ref_counts) if count == 0}
        assert all(self._hashes[block_id] is None for block_id in self._free_uncached)
        hashed = {each: i for i, each in enumerate(self._hashes) if each is not None}
        assert hashed == self._cached, "hashes and prefix cache differ"
        assert self._cached_xor == xor_hashes(hashed), "prefix cache and digest differ"

    def _take_free(self) -> int:
        if self._free_uncached:
            return self._free_uncached.popleft()
        block_id, _ = self._free_cached.popitem(last=False)
        block_hash = self._hashes[block_id]
        assert block_hash is not None
        self._hashes[block_id] = None
        del self._cached[block_hash]
        self._cached_xor ^= int.from_bytes(block_hash)
        if block_hash in self._stored:
            del self._stored[block_hash]
        else:
            self._removed[block_hash] = None
        return block_id
