"""The router's view of the mesh: which workers there are, how busy, and who holds a prefix.

Owns the channel to the kvstore. Knows nothing of requests or routing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import structlog

from pagemesh.membership.backoff import Backoff
from pagemesh.membership.roster import MemberListener, Roster, WorkerState
from pagemesh.rpc.call_context import call_timeout, outgoing_metadata
from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc

_log = structlog.get_logger(__name__)

# As in kvstore.proto; blocks behind it cannot be asked for.
MAX_LOOKUP_BLOCKS = 16_384


class Directory:
    """Follows the kvstore's membership and asks it for prefixes.

    While the kvstore is away, the last known workers stay, with `live` False. When it is back
    without its memory, workers that have not registered again after `grace` seconds are dropped:
    a kvstore that has just started knows nobody for a moment. Belongs to one event loop.
    """

    def __init__(self, kvstore: str, *, grace: float = 5.0) -> None:
        self._kvstore = kvstore
        self._grace = grace
        self._roster = Roster()
        self._revision = 0
        # Whether the roster is what the kvstore knew at that revision, so that a broken stream can
        # be resumed from there; otherwise the next one lists all members again.
        self._complete = False
        self._grace_timer: asyncio.TimerHandle | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stub: kvstore_pb2_grpc.KvStoreAsyncStub | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to follow the kvstore, whether or not it is there yet; returns at once."""
        self._channel = open_channel(self._kvstore)
        self._stub = kvstore_pb2_grpc.KvStoreStub(self._channel)
        self._watch = asyncio.create_task(self._watch_forever(self._stub), name="directory-watch")

    def workers(self) -> list[WorkerState]:
        """All known workers, in order of joining."""
        return self._roster.workers()

    def subscribe(self, listener: MemberListener) -> None:
        """Have `listener` called for every worker that is known now (JOINED) and every later change."""
        self._roster.subscribe(listener)

    async def lookup(
        self,
        block_hashes: Sequence[bytes],
        model_fingerprint: str,
        timeout: float,  # noqa: ASYNC109 - it becomes the call's deadline
    ) -> dict[str, int] | None:
        """Leading blocks of the prefix that each worker holds, by worker_id; workers with none are absent.

        None when there was no answer within `timeout` seconds or the kvstore refused. DeadlineError when
        the call that this is asked for has no time left.
        """
        if self._stub is None:
            return None
        request = kvstore_pb2.LookupRequest(
            block_hashes=b"".join(block_hashes[:MAX_LOOKUP_BLOCKS]),
            model_fingerprint=model_fingerprint,
        )
        try:
            response = await self._stub.Lookup(
                request, timeout=call_timeout(timeout), metadata=outgoing_metadata()
            )
        except grpc.aio.AioRpcError as error:
            _log.debug("lookup_failed", code=error.code().name, detail=error.details())
            return None
        return {holder.worker_id: holder.block_count for holder in response.holders}

    async def close(self) -> None:
        """Stop following; the last known workers can still be read. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()
            # Ends at once: the task only waits for the stream or for its next attempt.
            await asyncio.wait({self._watch})
            self._watch = None
        self._stub = None
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def _watch_forever(self, stub: kvstore_pb2_grpc.KvStoreAsyncStub) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._watch_once(stub, backoff)
                _log.info("kvstore_ended_watch", kvstore=self._kvstore)
            except grpc.aio.AioRpcError as error:
                _log.info("kvstore_away", kvstore=self._kvstore, code=error.code().name)
            except Exception:
                # Task boundary: whatever went wrong with this stream, the next one starts over.
                _log.exception("watch_failed", kvstore=self._kvstore)
                self._complete = False
            self._roster.doubt_all()
            await asyncio.sleep(backoff.next_delay())

    async def _watch_once(self, stub: kvstore_pb2_grpc.KvStoreAsyncStub, backoff: Backoff) -> None:
        """Follow one stream to its end."""
        after_revision = self._revision if self._complete else 0
        self._complete = after_revision != 0
        call = stub.Watch(kvstore_pb2.WatchRequest(after_revision=after_revision))
        try:
            async for change in call:
                self._apply(change)
                if change.HasField("synced"):
                    backoff.reset()
        finally:
            self._stop_grace()
            call.cancel()

    def _apply(self, change: kvstore_pb2.WatchResponse) -> None:
        self._revision = change.revision
        match change.WhichOneof("event"):
            case "joined":
                self._roster.join(change.joined)
            case "left":
                self._roster.leave(change.left)
            case "load":
                self._roster.report_load(change.load.worker_id, change.load.load)
            case "resync":
                self._stop_grace()
                self._complete = False
                self._roster.doubt_all()
            case "synced" if self._complete:
                self._roster.confirm_all()
            case "synced":
                self._start_grace()

    def _start_grace(self) -> None:
        """All members were named; those that were not get some time to register again."""
        self._stop_grace()
        if all(worker.live for worker in self.workers()):
            self._complete = True
        else:
            loop = asyncio.get_running_loop()
            self._grace_timer = loop.call_later(self._grace, self._end_grace)

    def _end_grace(self) -> None:
        self._roster.forget_doubtful()
        self._complete = True

    def _stop_grace(self) -> None:
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
