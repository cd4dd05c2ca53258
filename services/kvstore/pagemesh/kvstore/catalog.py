"""The kvstore itself: members and the blocks that they hold, kept in step. No grpc.

A block is in the index only as long as its worker is a member and its events follow one another
without a gap. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.errors import FailedPreconditionError, PagemeshError
from pagemesh.kvstore.changes import Beat, Change, ChangeLog, Removed, Stored, WorkerEvent, kind_of
from pagemesh.kvstore.feed import Feed, Indexing
from pagemesh.kvstore.index import BlockIndex, IndexMetrics
from pagemesh.kvstore.known_peers import KnownPeers, RemoteMember
from pagemesh.kvstore.members import Member, Members
from pagemesh.kvstore.membership import Membership
from pagemesh.v1 import types_pb2

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Resync:
    """A watcher has to forget all members; the present ones follow."""


@dataclass(frozen=True, slots=True)
class Synced:
    """A watcher knows everything up to this revision of a log."""

    revision: int
    log_id: str


class Registered(NamedTuple):
    """What a worker is told that became a member, or was one."""

    revision: int
    """At which it became one."""
    kept: CacheDigest | None
    """What the index still has of it, if anything."""


BULK_BLOCKS = 256
"""Events with more hashes take turns, so that lookups get between them: when a kvstore has restarted, all
workers send everything at once."""


class Catalog:
    """Composes members, change log and index."""

    def __init__(
        self,
        members: Members,
        membership: Membership,
        log: ChangeLog,
        index: BlockIndex,
        metrics: IndexMetrics,
        known_peers: KnownPeers,
    ) -> None:
        self._members = members
        self._membership = membership
        self._changes = log
        self._index = index
        self._metrics = metrics
        self.known_peers = known_peers
        """Whom it has to do with besides the members."""
        self._indexing = Indexing(members, index)
        self._bulk_gate = asyncio.Lock()
        membership.on_lost(self._indexing.drop)

    @property
    def revision(self) -> int:
        """Revision of the last change of membership or load."""
        return self._changes.revision

    def members(self) -> list[Member | RemoteMember]:
        """The present members, those that publish to other replicas too."""
        return [*self._members, *self._members.elsewhere]

    async def register(self, info: types_pb2.WorkerInfo) -> Registered:
        """Make a worker incarnation a member.

        Raises as `Members.register`, with nothing changed.
        """
        try:
            member, is_new = await self._membership.join(info)
        except PagemeshError as error:
            self.known_peers.refuse(info, error)
            raise
        self.known_peers.admit(info)
        if is_new:
            await self._indexing.add(member)
            _log.info("worker_joined", worker_id=info.worker_id, epoch=info.epoch)
        return Registered(member.joined.revision, await self._indexing.kept(member))

    async def open_stream(self, worker_id: str, epoch: int) -> Feed:
        """Begin a worker's stream of events; raises as `Members.attach`."""
        feed: Feed | None = None
        try:
            async with self._indexing.turn(worker_id):
                stream = self._members.attach(worker_id, epoch)
                member = self._members.get(worker_id)
                assert member is not None
                feed = Feed(stream, member.info.block_count, self._index, self._metrics)
                if not member.in_sync:
                    await self._indexing.forget(feed)
        except BaseException:
            # The stream speaks for the worker already, and nobody else could end it.
            if feed is not None:
                await self.close_stream(feed)
            raise
        return feed

    async def publish(self, feed: Feed, sequence: int, event: WorkerEvent) -> bool:
        """Take in an event; whether the worker is to be asked for a snapshot.

        Raises FailedPreconditionError when the stream no longer speaks for the worker.
        """
        worker_id = feed.stream.worker_id
        # A worker whose event waits in here is not silent, and neither is it right behind.
        async with self._indexing.turn(worker_id):
            if isinstance(event, Stored | Removed) and len(event.block_hashes) > BULK_BLOCKS:
                # One gets through in a turn of the event loop, however many wait.
                async with self._bulk_gate:
                    await asyncio.sleep(0)
            verdict = self._members.accept(feed.stream, sequence, kind_of(event))
            if isinstance(event, Beat) and verdict.apply:
                self._members.report_load(feed.stream, event.load)
            resync = await self._indexing.put(feed, verdict, event)
            self._members.hear(feed.stream)
        if resync:
            _log.warning("resync_wanted", worker_id=worker_id, sequence=sequence)
        return resync

    async def close_stream(self, feed: Feed) -> None:
        """End a stream; its worker is dropped, unless another stream speaks for it by now."""
        stream = feed.stream
        async with self._dropping(stream.worker_id):
            has_left = await self._membership.leave(stream)
        if has_left:
            _log.info("worker_left", worker_id=stream.worker_id, epoch=stream.epoch)

    async def drop_silent(self) -> None:
        """Drop the workers whose heartbeats stopped."""
        for worker_id in self._members.silent():
            if self._indexing.turn(worker_id).locked():
                # What it said last still waits for the index: it is not the worker that is slow.
                continue
            try:
                async with self._dropping(worker_id):
                    has_left = await self._membership.expire(worker_id)
                if has_left:
                    _log.warning("worker_silent", worker_id=worker_id)
            except Exception:
                # Boundary of what is done for one worker: the others are silent all the same.
                _log.exception("drop_failed", worker_id=worker_id)

    @asynccontextmanager
    async def _dropping(self, worker_id: str) -> AsyncIterator[None]:
        """Around what may end a membership: where it did, even by failing, the index drops the worker."""
        member = self._members.get(worker_id)
        try:
            yield
        finally:
            if self._members.get(worker_id) is None:
                if member is not None:
                    self.known_peers.depart(member.info)
                await self._indexing.drop(worker_id)

    async def lookup(self, block_hashes: Sequence[bytes], model_fingerprint: str) -> dict[str, int]:
        """Leading blocks that each worker of the model holds; workers with none are absent."""
        began_at = time.perf_counter()
        holders = await self._index.lookup(block_hashes)
        self._metrics.on_lookup(time.perf_counter() - began_at)
        return {
            worker_id: num_blocks
            for worker_id, num_blocks in holders.items()
            if (member := self._member(worker_id)) is not None
            and member.info.model_fingerprint == model_fingerprint
        }

    async def count_blocks(self, worker_id: str) -> int:
        """Blocks that a member is believed to hold; 0 while the index does not know it yet."""
        try:
            return await self._index.count(worker_id)
        except FailedPreconditionError:
            return 0

    async def believed(self, worker_id: str) -> CacheDigest | None:
        """What a member is believed to hold, in short; None while the index does not know it yet."""
        try:
            return await self._index.digest(worker_id)
        except FailedPreconditionError:
            return None

    async def blocks(self, worker_id: str) -> frozenset[bytes]:
        """The blocks that a member is believed to hold; none while the index does not know it yet."""
        try:
            return await self._index.snapshot(worker_id)
        except FailedPreconditionError:
            return frozenset()

    async def follow(
        self, after_revision: int, log_id: str
    ) -> AsyncGenerator[Change | Resync | Synced, None]:
        """Changes behind a revision of a log, without end.

        Begins with the present members where the revision is 0, or (after a Resync) too old or of another
        log. Synced follows once everything up to the present was given. A reader that is too slow for the
        log gets a Resync likewise.
        """
        log = self._changes
        revision, is_caught_up = after_revision, False
        is_comparable = revision > 0 and log_id == log.log_id
        while True:
            missed = log.since(revision) if is_comparable else None
            if missed is None:
                if revision:
                    yield Resync()
                missed, is_caught_up = self._members.present(), False
            revision, is_comparable = log.revision, True
            for change in missed:
                yield change
            if not is_caught_up:
                is_caught_up = True
                yield Synced(revision, log.log_id)
            await log.wait_beyond(revision)

    def _member(self, worker_id: str) -> Member | RemoteMember | None:
        return self._members.get(worker_id) or self._members.elsewhere.get(worker_id)
