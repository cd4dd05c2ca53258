"""What an index of cached blocks does, whatever it is kept in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.errors import FailedPreconditionError

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
    """Which worker holds which blocks. Blocks are named by their chained 16-byte hashes.

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
        """How many of these blocks, each named once, the worker holds."""
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
