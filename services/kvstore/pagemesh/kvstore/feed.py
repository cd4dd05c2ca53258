"""What workers tell of their caches, put into the index in the order in which it was said, and compared with their counts.

Where a worker's count and the index differ, the index is wrong, or the worker is; a snapshot makes up for either. It is
not put into the index as it comes, as others are: it is gathered and counted against what the index believed, so that
it is known how many blocks were wrong. Only then the index forgets the worker's blocks and is told those that were
gathered, some at a time: lookups meanwhile find less than there is.

An index that is away, or has lost a worker, is no fault of the worker: what it says meanwhile counts as missed,
and is made up for by a snapshot once there is somebody to keep it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakValueDictionary

import structlog

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.errors import FailedPreconditionError, UnavailableError
from pagemesh.kvstore.changes import (
    Beat,
    CacheEvent,
    Cleared,
    Digested,
    Removed,
    Resumed,
    Stored,
    WorkerEvent,
)
from pagemesh.kvstore.index import BlockIndex, IndexMetrics
from pagemesh.kvstore.members import Member, Members, PublishStream, Verdict

_log = structlog.get_logger(__name__)

SLICE_BLOCKS = 2048
"""Blocks of a gathered snapshot that are handled between two turns of the event loop."""

MOST_PATIENCE = 64
"""A worker whose snapshots do not help is asked for another one at every so many digests, in the end."""


class Effect(enum.Enum):
    """What an event did."""

    DONE = "done"
    DIFFERED = "differed"
    """The worker's own count is another one: a snapshot is wanted, until which everything goes on."""
    REFUSED = "refused"
    """The worker would hold more blocks than it announced, or others than it goes on with: nothing that is known
    of them is worth anything."""


class Feed:
    """The way of one stream's events into the index. They come one after the other, without a gap.

    After a gap, `forget` comes first.
    """

    def __init__(
        self, stream: PublishStream, max_blocks: int, index: BlockIndex, metrics: IndexMetrics
    ) -> None:
        self.stream = stream
        self._worker_id = stream.worker_id
        self._max_blocks = max_blocks
        self._index = index
        self._metrics = metrics
        self._is_differing = False
        # What came of the snapshot that is to replace what the index believes.
        self._gathered: set[bytes] | None = None
        # Digests to let pass until the next one that may ask for a snapshot.
        self._patience = self._next_patience = 1

    async def apply(self, event: CacheEvent) -> Effect:
        """Put an event into effect."""
        if isinstance(event, Digested):
            return await self._compare(event.digest)
        if isinstance(event, Resumed):
            return await self._resume(event.digest)
        if isinstance(event, Cleared) and self._is_differing:
            self._gathered = set()
            return Effect.DONE
        if self._gathered is not None:
            return await self._gather(self._gathered, event)
        match event:
            case Stored(block_hashes):
                fits = await self._store(block_hashes)
                return Effect.DONE if fits else Effect.REFUSED
            case Removed(block_hashes):
                await self._index.remove(self._worker_id, block_hashes)
                self._metrics.on_removed(len(block_hashes))
            case Cleared():
                await self._index.clear(self._worker_id)
        return Effect.DONE

    async def _resume(self, told: CacheDigest) -> Effect:
        self._end_difference()
        if not await self._index.add_worker(self._worker_id, self._max_blocks, told):
            return Effect.REFUSED
        _log.info("blocks_kept", worker_id=self._worker_id, num_blocks=told.num_blocks)
        return Effect.DONE

    async def forget(self) -> None:
        """The worker's blocks are unknown until it begins anew; the index may have lost the worker itself."""
        self._end_difference()
        await self._index.add_worker(self._worker_id, self._max_blocks)

    async def settle(self) -> None:
        """Whatever was gathered counts, though no digest has ended it."""
        if self._gathered is not None:
            gathered = self._gathered
            self._end_difference()
            await self._replace(gathered)

    async def _gather(self, gathered: set[bytes], event: Stored | Removed | Cleared) -> Effect:
        match event:
            case Stored(block_hashes):
                gathered.update(block_hashes)
            case Removed(block_hashes):
                gathered.difference_update(block_hashes)
            case Cleared():
                gathered.clear()
        return Effect.DONE if len(gathered) <= self._max_blocks else Effect.REFUSED

    async def _compare(self, told: CacheDigest) -> Effect:
        if self._gathered is not None:
            gathered = self._gathered
            self._end_difference()
            await self._measure(gathered)
            await self._replace(gathered)
        elif self._is_differing:
            # Told before the worker heard that a snapshot is wanted.
            return Effect.DONE
        believed = await self._index.digest(self._worker_id)
        self._metrics.on_digest(agrees=believed == told)
        self.stream.differs = believed != told
        self.stream.num_differences += self.stream.differs
        if believed == told:
            self._patience = self._next_patience = 1
            return Effect.DONE
        self._patience -= 1
        if self._patience:
            return Effect.DONE
        _log.warning(
            "index_diverged",
            worker_id=self._worker_id,
            epoch=self.stream.epoch,
            num_believed_blocks=believed.num_blocks,
            num_held_blocks=told.num_blocks,
        )
        self._patience = self._next_patience = min(2 * self._next_patience, MOST_PATIENCE)
        self._is_differing = True
        return Effect.DIFFERED

    async def _measure(self, gathered: set[bytes]) -> None:
        """Publish by how much the index was wrong."""
        believed = await self._index.digest(self._worker_id)
        num_indexed = await self._index.count(self._worker_id)
        num_right = 0
        async for blocks in _slices(gathered):
            num_right += await self._index.count_held(self._worker_id, blocks)
        # What the index gave up for want of room it was not wrong about.
        num_given_up = believed.num_blocks - num_indexed
        num_missing = max(0, len(gathered) - num_right - num_given_up)
        num_surplus = num_indexed - num_right
        self._metrics.on_measured(num_missing, num_surplus)
        _log.info(
            "index_divergence_measured",
            worker_id=self._worker_id,
            num_missing_blocks=num_missing,
            num_surplus_blocks=num_surplus,
        )

    async def _replace(self, gathered: set[bytes]) -> None:
        await self._index.clear(self._worker_id)
        async for blocks in _slices(gathered):
            await self._store(blocks)

    async def _store(self, block_hashes: Sequence[bytes]) -> bool:
        fits = await self._index.store(self._worker_id, block_hashes)
        self._metrics.on_stored(len(block_hashes), fits=fits)
        return fits

    def _end_difference(self) -> None:
        self._is_differing = False
        self._gathered = None


async def _slices(blocks: set[bytes]) -> AsyncIterator[Sequence[bytes]]:
    everything = list(blocks)
    for start in range(0, len(everything), SLICE_BLOCKS):
        if start:
            await asyncio.sleep(0)
        yield everything[start : start + SLICE_BLOCKS]


class Indexing:
    """Of the members that publish here. Whoever decides what `forget` or `put` does holds the worker's `turn`."""

    def __init__(self, members: Members, index: BlockIndex) -> None:
        self._members = members
        self._index = index
        # What is done to the index for one worker is done in the order in which it was decided, though an
        # index may take its time. Kept as long as somebody holds or waits for one.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, worker_id: str) -> asyncio.Lock:
        """Held while something is done for a worker."""
        return self._turns.setdefault(worker_id, asyncio.Lock())

    async def add(self, member: Member) -> None:
        """An incarnation joined. It holds nothing yet, but for one that has moved here: of that one what there is
        stays as it is, until its first event.
        """
        info = member.info
        # Whoever registers may give up before its turn comes: what there is may be an earlier incarnation's.
        member.in_sync = False
        async with self.turn(info.worker_id):
            if member.has_moved:
                member.is_index_behind = True
            else:
                with self._despite_the_index(info.worker_id):
                    await self._index.add_worker(info.worker_id, info.block_count)
            member.in_sync = True

    async def kept(self, member: Member) -> CacheDigest | None:
        """What a member that has moved here may resume with, as long as it has not said anything."""
        if not member.has_moved or member.stream is not None:
            return None
        worker_id = member.info.worker_id
        async with self.turn(worker_id):
            with self._despite_the_index(worker_id):
                return await self._index.digest(worker_id)
        return None

    async def drop(self, worker_id: str) -> None:
        """A worker no longer publishes here."""
        async with self.turn(worker_id):
            await self._index.drop_worker(worker_id)

    async def forget(self, feed: Feed) -> None:
        """What is known of a worker's blocks is worth nothing."""
        with self._despite_the_index(feed.stream.worker_id):
            await feed.forget()

    async def put(self, feed: Feed, verdict: Verdict, event: WorkerEvent) -> bool:
        """Do what is to be done about an event; whether the worker is to be asked for a snapshot."""
        with self._despite_the_index(feed.stream.worker_id):
            effect = await self._put(feed, verdict, event)
            return verdict.resync or effect is not Effect.DONE
        # It will be, at a later event: a snapshot could not be kept now.
        return False

    async def _put(self, feed: Feed, verdict: Verdict, event: WorkerEvent) -> Effect:
        if verdict.forget:
            await feed.forget()
        if not verdict.apply:
            return Effect.DONE
        if isinstance(event, Beat):
            await feed.settle()
            return Effect.DONE
        effect = await feed.apply(event)
        if effect is Effect.REFUSED:
            self._members.distrust(feed.stream)
            await feed.forget()
        return effect

    @contextmanager
    def _despite_the_index(self, worker_id: str) -> Iterator[None]:
        try:
            yield
        except (UnavailableError, FailedPreconditionError) as error:
            _log.debug("index_behind", worker_id=worker_id, error=error.message)
            if (member := self._members.get(worker_id)) is not None:
                member.is_index_behind = True
