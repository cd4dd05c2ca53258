"""What an index of cached blocks does, whatever it is kept in; and what is counted of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.errors import FailedPreconditionError
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import kvstore as declared

NOTHING_HELD = CacheDigest()


class IndexUsage(NamedTuple):
    """What an index holds, and what that takes."""

    num_blocks: int
    """Different blocks."""
    num_held: int
    """Blocks, counted once for each worker that holds them."""
    num_bytes: int
    """Memory that the blocks take, measured on some of them."""
    num_evicted: int
    """Blocks that were given up for want of room, since this object was made."""


class BlockIndex(Protocol):
    """Which worker holds which blocks. Blocks are identified by their chained 16-byte hashes.

    An index may be bounded. One that is full gives up the blocks that were neither stored nor looked up for the
    longest time: lookups then find less than there is, and never more. What a worker said it holds (`digest`),
    and how much it may hold, stays the same.

    Belongs to one event loop. Calls for one worker are made one after the other; a call about a
    worker that was not added raises FailedPreconditionError, `drop_worker` excepted.
    """

    async def add_worker(
        self, worker_id: str, max_blocks: int, held: CacheDigest = NOTHING_HELD
    ) -> bool:
        """Begin to keep blocks of a worker, at most `max_blocks`.

        What was kept of it stays if it is exactly what it holds, by its own `digest`; else it is dropped. Whether
        the worker's blocks are those that it holds.
        """
        ...

    async def drop_worker(self, worker_id: str) -> None:
        """Forget a worker and its blocks, in a time that does not depend on their number."""
        ...

    async def store(self, worker_id: str, block_hashes: Sequence[bytes]) -> bool:
        """The worker holds these blocks too. False, with nothing changed, if that were too many.

        A worker does not say so of blocks that it holds already: such a one that the index gave up would count
        twice, until the worker's own digest shows it.
        """
        ...

    async def remove(self, worker_id: str, block_hashes: Sequence[bytes]) -> None:
        """The worker no longer holds these blocks; those that it did not hold are ignored."""
        ...

    async def clear(self, worker_id: str) -> None:
        """The worker holds nothing, in a time that does not depend on the number of its blocks."""
        ...

    async def lookup(self, block_hashes: Sequence[bytes]) -> dict[str, int]:
        """How many of the leading blocks each worker holds; workers without the first are absent."""
        ...

    async def count(self, worker_id: str) -> int:
        """Blocks that the worker holds."""
        ...

    async def digest(self, worker_id: str) -> CacheDigest:
        """Of all blocks that the worker said it holds, those that the index gave up for want of room included.

        In a time that does not depend on the number of its blocks.
        """
        ...

    async def count_held(self, worker_id: str, block_hashes: Sequence[bytes]) -> int:
        """How many of these blocks, each given once, the worker holds."""
        ...

    async def snapshot(self, worker_id: str) -> frozenset[bytes]:
        """All blocks that the worker holds."""
        ...

    async def tidy(self, max_blocks: int) -> bool:
        """Free what dropped workers left behind, at most `max_blocks`; whether there is more to free."""
        ...

    async def usage(self) -> IndexUsage:
        """What is held and what it takes, in a time that does not depend on the number of blocks."""
        ...


def not_indexed(worker_id: str) -> FailedPreconditionError:
    """That a worker was not added, or that the index has lost it."""
    return FailedPreconditionError(
        f"worker {worker_id!r} is not registered", reason="UNKNOWN_WORKER"
    )


class IndexMetrics:
    """Counts what is asked of an index, what it takes, and what about it was wrong. Told by those who ask it."""

    def __init__(self, metrics: Metrics) -> None:
        self._lookup_seconds = metrics.histogram(declared.INDEX_LOOKUP_SECONDS)
        self._stored = metrics.counter(declared.INDEX_BLOCKS_STORED)
        self._removed = metrics.counter(declared.INDEX_BLOCKS_REMOVED)
        self._refused = metrics.counter(declared.INDEX_BLOCKS_REFUSED)
        self._evicted = metrics.counter(declared.INDEX_BLOCKS_EVICTED)
        self._distinct = metrics.gauge(declared.INDEX_DISTINCT_BLOCKS)
        self._held = metrics.gauge(declared.INDEX_BLOCKS)
        self._bytes = metrics.gauge(declared.INDEX_BYTES)
        self._bytes_per_block = metrics.gauge(declared.INDEX_BYTES_PER_BLOCK)
        self._digests = metrics.counter(declared.INDEX_DIGESTS)
        self._divergences = metrics.counter(declared.INDEX_DIVERGENCES)
        wrong = metrics.counter(declared.INDEX_DIVERGED_BLOCKS)
        self._missing, self._surplus = wrong.labels("missing"), wrong.labels("surplus")
        self._num_evicted = 0

    def on_stored(self, num_blocks: int, *, fits: bool) -> None:
        """A worker said that it holds so many more; whether the index took them."""
        (self._stored if fits else self._refused).inc(num_blocks)

    def on_removed(self, num_blocks: int) -> None:
        """A worker said that it no longer holds so many."""
        self._removed.inc(num_blocks)

    def on_lookup(self, seconds: float) -> None:
        """A lookup was answered, which took so long."""
        self._lookup_seconds.observe(seconds)

    def on_usage(self, usage: IndexUsage) -> None:
        """The index said what it holds, and what that takes."""
        self._distinct.set(usage.num_blocks)
        self._held.set(usage.num_held)
        self._bytes.set(usage.num_bytes)
        self._bytes_per_block.set(usage.num_bytes / max(1, usage.num_blocks))
        self._evicted.inc(usage.num_evicted - self._num_evicted)
        self._num_evicted = usage.num_evicted

    def on_digest(self, *, agrees: bool) -> None:
        """A worker's digest was compared with the index."""
        self._digests.inc()
        if not agrees:
            self._divergences.inc()

    def on_measured(self, num_missing: int, num_surplus: int) -> None:
        """A snapshot came behind a difference: what the worker held and the index did not know, and the reverse."""
        self._missing.inc(num_missing)
        self._surplus.inc(num_surplus)
