"""The worker's voice: who it is, what its cache holds and how busy it is, told to the kvstore.

Owns the channel to the kvstore and the numbering of events. Never disturbs the engine: while the
kvstore is away or slow, changes are merged or dropped, and a snapshot makes up for those that are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence

import grpc
import structlog

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.core.engine import Engine, StepOutput
from pagemesh.core.load import EngineLoad
from pagemesh.identity.roles import MeshRole
from pagemesh.membership.cache_changes import CacheChanges, CacheEventBuffer
from pagemesh.membership.replicas import Backoff, KvStoreReplicas
from pagemesh.messages import digest_from_proto, digest_to_proto, load_to_proto
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.identity import Identity
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2

_log = structlog.get_logger(__name__)

PublishCall = grpc.aio.StreamStreamCall[kvstore_pb2.PublishRequest, kvstore_pb2.PublishResponse]

REGISTER_TIMEOUT = 2.0
"""Seconds to wait for the kvstore's answer to a registration."""

LOAD_PERIOD = 0.1
"""Least seconds between two reports of a changed load; an unchanged one is a heartbeat. That a worker which was
reported as busy has nothing to do any more is told at once: a chat's next turn shall find it free."""

LASTING_CONNECTION = 5.0
"""A connection that lasted for so many seconds is tried again at once, not after a longer wait."""

CLOSE_TIMEOUT = 1.0
"""Most seconds that closing waits for the connection to end."""

MAX_BLOCKS_PER_EVENT = 2048
"""Hashes in one message: 32 KiB, which the kvstore takes in within some two milliseconds."""

_REFUSALS = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
)

REFUSAL_PERIOD = 60.0
"""Seconds after which a refusal that has not changed is logged again."""


class MembershipState(enum.Enum):
    """How a worker stands with the kvstore that it publishes to."""

    JOINED = "joined"
    AWAY = "away"
    """It does not answer, or has not yet."""
    REFUSED = "refused"


class Publisher:
    """Registers one worker incarnation and keeps the kvstore informed until closed.

    All methods belong to one event loop.
    """

    def __init__(
        self,
        kvstore: str,
        worker: types_pb2.WorkerInfo,
        engine: Engine,
        links: Callable[[], Sequence[types_pb2.LinkRate]],
        *,
        first: int | None = None,
        identity: Identity | None = None,
    ) -> None:
        """`kvstore` is the address of one, or of several replicas with commas in between; `first` is the place
        of the one to begin with, a random one when unset.

        `links` gives what was measured of the links to the worker, for each report of its load.
        """
        self._replicas = KvStoreReplicas(kvstore, first)
        self._identity = identity
        self._worker = worker
        self._engine = engine
        self._links = links
        # A kvstore that is further behind than this is cheaper to reach with a snapshot.
        self._buffer = CacheEventBuffer(max_changes=2 * worker.block_count)
        self._changed = asyncio.Event()
        self._sequence = 0
        self._task: asyncio.Task[None] | None = None
        self._refusal: str | None = None
        self._refused_at = 0.0
        self._is_away = False
        self.state = MembershipState.AWAY
        self.refusal = ""
        """Why the worker is not in the mesh, as gRPC or the kvstore says."""

    @property
    def kvstore(self) -> str:
        """host:port of the replica that is used at present, or tried."""
        return self._replicas.present

    def held(self) -> CacheDigest | None:
        """What the cache holds by the engine's own count; None while that is not known."""
        return self._buffer.digest

    def start(self) -> None:
        """Begin to register and publish, whether or not the kvstore is there yet; returns at once."""
        self._task = asyncio.create_task(self._publish_forever(), name="publisher")

    def on_step(self, step: StepOutput) -> None:
        """Take note of what an engine step changed; never waits."""
        awaited = self._buffer.awaits_snapshot
        self._buffer.add(step)
        if self._buffer.awaits_snapshot and not awaited:
            _log.warning("kvstore_too_slow", kvstore=self._replicas.present)
            self._engine.publish_snapshot()
        if not self._buffer.is_empty or self._engine.load().is_idle:
            self._changed.set()

    async def close(self) -> None:
        """Leave the mesh: the kvstore drops the worker as soon as the stream ends. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT)
            self._task = None

    async def _publish_forever(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        backoff = Backoff()
        while True:
            began_at = loop.time()
            is_refused = False
            try:
                # A new channel does not wait for the backoff that an old one has built up, and shows the
                # certificate of now.
                async with open_channel(
                    self._replicas.present, MeshRole.KVSTORE, self._identity
                ) as channel:
                    stub = kvstore_pb2_grpc.KvStoreStub(channel)
                    registered = await self._register(stub)
                    self._resume(registered)
                    await self._publish(stub, registered.heartbeat_interval_ms / 1000)
                self.state, self.refusal = MembershipState.AWAY, "the kvstore ended the stream"
                _log.info("kvstore_ended_stream", kvstore=self._replicas.present)
            except* grpc.aio.AioRpcError as errors:
                refusals = [self._report(error) for error in errors.exceptions]
                is_refused = all(refusals)
            except* Exception:
                # Task boundary: whatever went wrong with this connection, the next one starts over.
                _log.exception("publish_failed", kvstore=self._replicas.present)
            if task.cancelling():
                # Where the stream broke at the same moment, a TaskGroup raises that instead (until Python 3.13).
                raise asyncio.CancelledError
            if not is_refused:
                # Another replica would refuse for the same reason.
                self._replicas.move_on()
            if loop.time() - began_at > LASTING_CONNECTION:
                backoff.reset()
            await asyncio.sleep(backoff.next_delay())

    def _report(self, error: BaseException) -> bool:
        """Log why a connection ended; whether the kvstore is there, and refused the worker.

        A refusal is loud, because only people may be able to help, but not at every attempt: whoever is
        in the way may leave, as the workers before this one do when a mesh gets another block size.
        """
        assert isinstance(error, grpc.aio.AioRpcError)
        code, detail = error.code().name, error.details()
        self.state, self.refusal = MembershipState.AWAY, f"{code}: {detail}"
        if error.code() not in _REFUSALS:
            self._refusal = None
            # Once, and not at each of the attempts that follow in short order.
            log = _log.debug if self._is_away else _log.info
            log("kvstore_away", kvstore=self._replicas.present, code=code, detail=detail)
            self._is_away = True
            return False
        self.state, self.refusal = MembershipState.REFUSED, detail or code
        now = asyncio.get_running_loop().time()
        if detail != self._refusal or now - self._refused_at >= REFUSAL_PERIOD:
            self._refusal, self._refused_at = detail, now
            _log.error("kvstore_refused", kvstore=self._replicas.present, code=code, detail=detail)
        return True

    async def _register(
        self, stub: kvstore_pb2_grpc.KvStoreAsyncStub
    ) -> kvstore_pb2.RegisterResponse:
        """Announce the worker."""
        response = await stub.Register(
            kvstore_pb2.RegisterRequest(worker=self._worker), timeout=REGISTER_TIMEOUT
        )
        self._refusal = None
        self._is_away = False
        self.state, self.refusal = MembershipState.JOINED, ""
        _log.info("registered", kvstore=self._replicas.present, revision=response.revision)
        return response

    def _resume(self, registered: kvstore_pb2.RegisterResponse) -> None:
        """Have told what the kvstore does not know: what changed since then, or all that there is."""
        if registered.HasField("kept") and self._buffer.resume(digest_from_proto(registered.kept)):
            return
        self._buffer.discard()
        self._engine.publish_snapshot()

    async def _publish(
        self, stub: kvstore_pb2_grpc.KvStoreAsyncStub, heartbeat_interval: float
    ) -> None:
        """Send everything that happens on one stream, until it ends."""
        call = stub.Publish()
        try:
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._write(call, heartbeat_interval))
                async for response in call:
                    # One that is on its way anyhow answers the wish as well.
                    if response.resync and not self._buffer.awaits_snapshot:
                        self._buffer.await_snapshot()
                        self._engine.publish_snapshot()
                writer.cancel()
        finally:
            call.cancel()

    async def _write(self, call: PublishCall, heartbeat_interval: float) -> None:
        """Send changes as they come, load and digest at their pace, until the stream has ended."""
        loop = asyncio.get_running_loop()
        load_period = min(LOAD_PERIOD, heartbeat_interval / 2)
        next_load_at = loop.time()
        reported_load: EngineLoad | None = None
        reported_at = checked_at = loop.time()
        while True:
            changes = self._buffer.take()
            requests = change_requests(changes)
            is_snapshot = changes.cleared and changes.digest is not None
            if is_snapshot or loop.time() - checked_at >= heartbeat_interval:
                requests += digest_requests(changes)
                checked_at = loop.time()
            load = self._engine.load()
            fell_idle = load.is_idle and reported_load is not None and not reported_load.is_idle
            if fell_idle or loop.time() >= next_load_at:
                if load != reported_load or loop.time() - reported_at >= heartbeat_interval:
                    message = load_to_proto(load, self._links())
                    requests.append(kvstore_pb2.PublishRequest(load=message))
                    reported_load, reported_at = load, loop.time()
                next_load_at = loop.time() + load_period
            for request in requests:
                if call.done():
                    return
                await self._send(call, request)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_load_at):
                    await self._changed.wait()
            self._changed.clear()

    async def _send(self, call: PublishCall, request: kvstore_pb2.PublishRequest) -> None:
        self._sequence += 1
        request.worker_id = self._worker.worker_id
        request.epoch = self._worker.epoch
        request.sequence = self._sequence
        await call.write(request)


def change_requests(changes: CacheChanges) -> list[kvstore_pb2.PublishRequest]:
    """Changes as events without number and sender.

    Removals come before additions, so that the kvstore never counts more blocks than there are.
    """
    requests = []
    if changes.cleared:
        requests.append(kvstore_pb2.PublishRequest(cleared=kvstore_pb2.BlocksCleared()))
    elif changes.resumed is not None:
        requests.append(kvstore_pb2.PublishRequest(resumed=digest_to_proto(changes.resumed)))
    for packed in _packed(changes.removed):
        removed = kvstore_pb2.BlocksRemoved(block_hashes=packed)
        requests.append(kvstore_pb2.PublishRequest(removed=removed))
    for packed in _packed(changes.stored):
        stored = kvstore_pb2.BlocksStored(block_hashes=packed)
        requests.append(kvstore_pb2.PublishRequest(stored=stored))
    return requests


def digest_requests(changes: CacheChanges) -> list[kvstore_pb2.PublishRequest]:
    """What the cache holds behind these changes, if that is known: to be sent right behind them."""
    if changes.digest is None:
        return []
    return [kvstore_pb2.PublishRequest(digest=digest_to_proto(changes.digest))]


def _packed(block_hashes: Sequence[bytes]) -> Iterator[bytes]:
    """The hashes joined into pieces that fit into one event each."""
    for start in range(0, len(block_hashes), MAX_BLOCKS_PER_EVENT):
        yield b"".join(block_hashes[start : start + MAX_BLOCKS_PER_EVENT])
