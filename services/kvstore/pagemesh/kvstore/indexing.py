"""Has the index follow what workers say, in the order in which it was said.

An index that is away, or has lost a worker, is no fault of the worker: what it says meanwhile counts as missed,
and is made up for by a snapshot once there is somebody to keep it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

import structlog

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.errors import FailedPreconditionError, UnavailableError
from pagemesh.kvstore.events import Beat, WorkerEvent
from pagemesh.kvstore.feed import Effect, Feed
from pagemesh.kvstore.index import BlockIndex
from pagemesh.kvstore.members import Member, Members, Verdict

_log = structlog.get_logger(__name__)


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
