"""What an index of cached blocks does, whatever it is kept in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pagemesh.cache.digest import CacheDigest


class BlockIndex(Protocol):
    """Which worker holds which blocks. Blocks are named by their chained 16-byte hashes.

    Belongs to one event loop. Calls for one worker are made one after the other; a call about a
    worker that was not added raises FailedPreconditionError, `drop_worker` excepted.
    """

    async def add_worker(self, worker_id: str, max_blocks: int) -> None:
        """Begin to keep blocks of a worker, at most `max_blocks`; whatever was kept of it is dropped."""
        ...

    async def drop_worker(self, worker_id: str) -> None:
        """Forget a worker and its blocks, in a time that does not depend on their number."""
        ...

    async def store(self, worker_id: str, block_hashes: Sequence[bytes]) -> bool:
        """The worker holds these blocks too. False, with nothing changed, if that were too many."""
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
