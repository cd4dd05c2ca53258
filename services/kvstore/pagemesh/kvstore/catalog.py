"""The kvstore itself: members and the blocks that they hold, kept in step. No grpc.

A block is in the index only as long as its worker is a member and its events follow one another
without a gap. Belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import structlog

from pagemesh.errors import InvalidRequestError
from pagemesh.kvstore.changes import Change, ChangeLog
from pagemesh.kvstore.index import BlockIndex
from pagemesh.kvstore.members import EventKind, Member, Members, PublishStream
from pagemesh.v1 import types_pb2

_log = structlog.get_logger(__name__)

MAX_LOOKUP_BLOCKS = 16_384
"""Most hashes in one lookup, as kvstore.proto says."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks entered a worker's cache."""

    block_hashes: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks left a worker's cache."""

    block_hashes: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Cleared:
    """A worker's cache is empty."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker is alive, and this busy."""

    load: types_pb2.WorkerLoad


WorkerEvent = Stored | Removed | Cleared | Beat


@dataclass(frozen=True, slots=True)
class Resync:
    """A watcher has to forget all members; the present ones follow."""


@dataclass(frozen=True, slots=True)
class Synced:
    """A watcher knows everything up to this revision."""

    revision: int


class Catalog:
    """Composes members, change log and index."""

    def __init__(self, members: Members, log: ChangeLog, index: BlockIndex) -> None:
        self._members = members
        self._changes = log
        self._index = index

    @property
    def revision(self) -> int:
        """Revision of the last change of membership or load."""
        return self._changes.revision

    def members(self) -> list[Member]:
        """The present members."""
        return list(self._members)

    async def register(self, info: types_pb2.WorkerInfo) -> int:
        """Make a worker incarnation a member; gives the revision at which it became one.

        Raises as `Members.register`, with nothing changed.
        """
        member, is_new = self._members.register(info)
        if is_new:
            await self._index.add_worker(info.worker_id, info.block_count)
            _log.info("worker_joined", worker_id=info.worker_id, epoch=info.epoch)
        return member.joined.revision

    async def open_stream(self, worker_id: str, epoch: int) -> PublishStream:
        """Begin a worker's stream of events; raises as `Members.attach`."""
        return self._members.attach(worker_id, epoch)

    async def publish(self, stream: PublishStream, sequence: int, event: WorkerEvent) -> bool:
        """Take in an event; whether the worker is to be asked for a snapshot.

        Raises FailedPreconditionError when the stream no longer speaks for the worker.
        """
        verdict = self._members.accept(stream, sequence, _kind(event))
        if verdict.forget:
            await self._index.clear(stream.worker_id)
        resync = verdict.resync
        if verdict.apply and not await self._apply(stream, event):
            self._members.distrust(stream)
            await self._index.clear(stream.worker_id)
            resync = True
        if resync:
            _log.warning("resync_wanted", worker_id=stream.worker_id, sequence=sequence)
        return resync

    async def close_stream(self, stream: PublishStream) -> None:
        """End a stream; its worker is dropped, unless another stream speaks for it by now."""
        if self._members.detach(stream):
            await self._index.drop_worker(stream.worker_id)
            _log.info("worker_left", worker_id=stream.worker_id, epoch=stream.epoch)

    async def drop_silent(self) -> None:
        """Drop the workers whose heartbeats stopped."""
        for worker_id in self._members.silent():
            self._members.drop(worker_id)
            await self._index.drop_worker(worker_id)
            _log.warning("worker_silent", worker_id=worker_id)

    async def lookup(self, block_hashes: Sequence[bytes], model_fingerprint: str) -> dict[str, int]:
        """Leading blocks that each worker of the model holds; workers with none are absent."""
        if len(block_hashes) > MAX_LOOKUP_BLOCKS:
            raise InvalidRequestError(
                f"block_hashes has {len(block_hashes)} hashes, but {MAX_LOOKUP_BLOCKS} are the most",
                param="block_hashes",
            )
        holders = await self._index.lookup(block_hashes)
        return {
            worker_id: num_blocks
            for worker_id, num_blocks in holders.items()
            if (member := self._members.get(worker_id)) is not None
            and member.info.model_fingerprint == model_fingerprint
        }

    async def count_blocks(self, worker_id: str) -> int:
        """Blocks that a member is believed to hold."""
        return await self._index.count(worker_id)

    async def blocks(self, worker_id: str) -> frozenset[bytes]:
        """The blocks that a member is believed to hold."""
        return await self._index.snapshot(worker_id)

    async def follow(self, after_revision: int) -> AsyncGenerator[Change | Resync | Synced, None]:
        """Changes behind a revision, without end.

        Begins with the present members where the revision is 0, or (after a Resync) too old. Synced
        follows once everything up to the present was given. A reader that is too slow for the log
        gets a Resync likewise.
        """
        revision, is_caught_up = after_revision, False
        while True:
            missed = self._changes.since(revision) if revision else None
            if missed is None:
                if revision:
                    yield Resync()
                missed, is_caught_up = self._members.present(), False
            revision = self._changes.revision
            for change in missed:
                yield change
            if not is_caught_up:
                is_caught_up = True
                yield Synced(revision)
            await self._changes.wait_beyond(revision)

    async def _apply(self, stream: PublishStream, event: WorkerEvent) -> bool:
        """Put an event into effect; False if the worker would hold more blocks than it announced."""
        match event:
            case Stored(block_hashes):
                return await self._index.store(stream.worker_id, block_hashes)
            case Removed(block_hashes):
                await self._index.remove(stream.worker_id, block_hashes)
            case Cleared():
                await self._index.clear(stream.worker_id)
            case Beat(load):
                self._members.report_load(stream, load)
        return True


def _kind(event: WorkerEvent) -> EventKind:
    match event:
        case Stored() | Removed():
            return EventKind.CHANGED
        case Cleared():
            return EventKind.CLEARED
        case Beat():
            return EventKind.BEAT
