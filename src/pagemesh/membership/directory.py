"""The router's view of the mesh: which workers there are, how busy, and who holds a prefix.

`Directory` owns the channel to the kvstore and knows nothing of requests or routing. `LookupBreaker` says whether to
ask a kvstore that has not been answering: a request that waits in vain loses only milliseconds, but every request
would lose them, since a frozen kvstore is not told from a slow one. After a few that waited in vain, one request in
each pause tries again for all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import grpc
import structlog

from pagemesh.identity.roles import MeshRole
from pagemesh.membership.replicas import Backoff, KvStoreReplicas
from pagemesh.membership.roster import MemberListener, Roster, WorkerState
from pagemesh.rpc.call_context import call_timeout, outgoing_metadata
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.tasks import cancel_to_end
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc

_log = structlog.get_logger(__name__)

# As in kvstore.proto; blocks behind it cannot be asked for.
MAX_LOOKUP_BLOCKS = 16_384

LOOKUP_GRACE = 2.0
"""Seconds that lookups under way get when the replica that they went to is left for another one."""


class Directory:
    """Follows the kvstore's membership and asks it for prefixes.

    Uses one of its replicas, and moves on to the next when that goes. While the kvstore is away, the last
    known workers stay, with `live` False. When it is back without its memory, or another replica has taken
    its place, workers that are not named within `grace` seconds are dropped: a kvstore that has just started
    knows nobody for a moment. Belongs to one event loop.
    """

    def __init__(
        self,
        kvstore: str,
        *,
        grace: float = 5.0,
        first: int | None = None,
        identity: Identity | None = None,
    ) -> None:
        """`kvstore` is the address of one, or of several replicas with commas in between; `first` is the place
        of the one to begin with, a random one when unset. ConfigError for what is no such address.
        """
        self._replicas = KvStoreReplicas(kvstore, first)
        self.kvstores = self._replicas.addresses
        """host:port of all replicas."""
        self._grace = grace
        self._identity = identity
        self._shown_generation = 0
        self._roster = Roster()
        # Of the replica that they came from: no other one's revisions can be compared with it.
        self._log_id = ""
        self._revision = 0
        # Whether the roster is what the kvstore knew at that revision, so that a broken stream can
        # be resumed from there; otherwise the next one lists all members again.
        self._complete = False
        self._grace_timer: asyncio.TimerHandle | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stub: kvstore_pb2_grpc.KvStoreAsyncStub | None = None
        self._watch: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._breaker = LookupBreaker(time.monotonic)
        self._watcher = ""
        self.is_following = False
        """Whether the kvstore has told of all present members, and goes on to tell of changes."""

    async def start(self, watcher: str = "") -> None:
        """Begin to follow the kvstore, whether or not it is there yet; returns at once.

        `watcher` is the host:port of the server that does, by which others find it.
        """
        self._watcher = watcher
        self._connect()
        self._watch = asyncio.create_task(self._watch_forever(), name="directory-watch")

    @property
    def kvstore(self) -> str:
        """host:port of the replica that is used at present."""
        return self._replicas.present

    def workers(self) -> tuple[WorkerState, ...]:
        """All known workers, in order of joining; the same object until one of them changes."""
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

        None when there was no answer within `timeout` seconds or the kvstore refused; at once while it is known
        not to answer, see `LookupBreaker`. DeadlineError when the call that this is asked for has no time left.
        """
        if self._stub is None:
            return None
        breaker, limit = self._breaker, call_timeout(timeout)
        if not breaker.may_ask():
            return None
        request = kvstore_pb2.LookupRequest(
            block_hashes=b"".join(block_hashes[:MAX_LOOKUP_BLOCKS]),
            model_fingerprint=model_fingerprint,
        )
        try:
            response = await self._stub.Lookup(request, timeout=limit, metadata=outgoing_metadata())
        except grpc.aio.AioRpcError as error:
            _log.debug("lookup_failed", code=error.code().name, detail=error.details())
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                breaker.on_answer()
            # If it had the time that it is to have, and not only what the caller had left.
            elif limit >= timeout and breaker.on_silence():
                _log.warning("kvstore_does_not_answer", kvstore=self._replicas.present)
            return None
        breaker.on_answer()
        return {holder.worker_id: holder.block_count for holder in response.holders}

    async def close(self) -> None:
        """Stop following; the last known workers can still be read. Idempotent."""
        if self._watch is not None:
            # Ends at once: the task only waits for the stream or for its next attempt.
            await cancel_to_end(self._watch)
            self._watch = None
        self._stub = None
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
        await asyncio.gather(*self._leaving)

    def _connect(self) -> None:
        self._shown_generation = self._identity.generation if self._identity else 0
        self._channel = open_channel(self._replicas.present, MeshRole.KVSTORE, self._identity)
        self._stub = kvstore_pb2_grpc.KvStoreStub(self._channel)
        self._breaker = LookupBreaker(time.monotonic)

    def _move_on(self) -> None:
        """Use the next replica, for lookups too, if there is another one; or a new certificate, if that is new."""
        left = self._channel
        is_same = not self._replicas.move_on()
        if self._identity is not None:
            is_same &= self._identity.generation == self._shown_generation
        if left is None or is_same:
            return
        self._connect()
        # Not at once: that would cancel whoever awaits a lookup.
        leaving = asyncio.create_task(left.close(LOOKUP_GRACE), name="directory-leave")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _watch_forever(self) -> None:
        backoff = Backoff()
        while True:
            kvstore = self._replicas.present
            try:
                await self._watch_once(backoff)
                _log.info("kvstore_ended_watch", kvstore=kvstore)
            except grpc.aio.AioRpcError as error:
                _log.info(
                    "kvstore_away", kvstore=kvstore, code=error.code().name, detail=error.details()
                )
            except Exception:
                # Task boundary: whatever went wrong with this stream, the next one starts over.
                _log.exception("watch_failed", kvstore=kvstore)
                self._complete = False
            self._roster.doubt_all()
            self._move_on()
            await asyncio.sleep(backoff.next_delay())

    async def _watch_once(self, backoff: Backoff) -> None:
        """Follow one stream to its end."""
        assert self._stub is not None, "it is set while this task runs"
        after_revision = self._revision if self._complete else 0
        self._complete = after_revision != 0
        call = self._stub.Watch(
            kvstore_pb2.WatchRequest(
                after_revision=after_revision, log_id=self._log_id, watcher=self._watcher
            )
        )
        try:
            async for change in call:
                self._apply(change)
                if change.HasField("synced"):
                    backoff.reset()
        finally:
            self.is_following = False
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
                self.is_following = False
                self._stop_grace()
                self._complete = False
                self._roster.doubt_all()
            case "synced":
                self.is_following = True
                self._log_id = change.synced.log_id
                if self._complete:
                    self._roster.confirm_all()
                else:
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


VAIN_LOOKUPS = 3
"""Lookups in a row without an answer in time, after which there is a pause."""

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 2.0
"""Seconds between two tries: twice as long each time, and never so long that a kvstore that is back stays
unasked for long."""


class LookupBreaker:
    """Of one kvstore. `clock` gives seconds. Not thread-safe: belongs to one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_vain = 0
        self._pause = FIRST_PAUSE
        self._next_try_at = 0.0
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """Whether there is a pause."""
        return self._num_vain >= VAIN_LOOKUPS

    def may_ask(self) -> bool:
        """Whether to ask now; who may has to say what came of it."""
        if not self.is_open:
            return True
        now = self._clock()
        if now < self._next_try_at:
            return False
        # Others go without until this one's try is over, or has been given up.
        self._next_try_at = now + self._pause
        self._is_trying = True
        return True

    def on_answer(self) -> None:
        """There was an answer in time, whatever it was."""
        self._num_vain = 0
        self._pause = FIRST_PAUSE
        self._is_trying = False

    def on_silence(self) -> bool:
        """There was none; whether that begins a pause."""
        was_open = self.is_open
        self._num_vain += 1
        if was_open and not self._is_trying:
            # It was asked together with those that began the pause.
            return False
        if was_open:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._is_trying = False
        self._next_try_at = self._clock() + self._pause
        return self.is_open and not was_open
