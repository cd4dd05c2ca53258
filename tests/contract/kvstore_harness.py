"""A kvstore on loopback, engines that publish to it, and waiting for what must come about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from pagemesh.config import KvStoreConfig, ServerConfig
from pagemesh.core.engine import StepOutput
from pagemesh.core.request import EngineRequest
from pagemesh.kvstore.service import SERVICE_NAME, KvStoreService
from pagemesh.kvstore.servicer import KvStoreServicer
from pagemesh.membership.directory import Directory
from pagemesh.membership.publisher import Publisher
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.server import GrpcServer
from pagemesh.sampling.params import SamplingParams
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2
from tests.fakes.engine import FakeEngine
from tests.unit.kvstore.builders import Store

DEADLINE_S = 30.0


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail when that takes longer than DEADLINE_S."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running_kvstore(
    *,
    port: int = 0,
    heartbeat_interval: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    index: str = "memory",
) -> AsyncIterator[str]:
    """A kvstore; gives its address."""
    config = KvStoreConfig(
        server=ServerConfig(port=port, grace_period=1.0),
        heartbeat_interval=heartbeat_interval,
        index=index,
    )
    service = KvStoreService(config, clock)
    address = await service.start()
    try:
        yield address
    finally:
        await service.close()


@asynccontextmanager
async def serving(
    store: Store, *, port: int = 0, heartbeat_interval: float = 1.0
) -> AsyncIterator[str]:
    """A server for a catalog that outlives it, without housekeeping; gives its address."""
    server = GrpcServer(ServerConfig(port=port, grace_period=1.0), [SERVICE_NAME])
    address = await server.start()
    draining = asyncio.Event()

    async def drain() -> None:
        draining.set()

    server.on_drain(drain)
    server.add(
        kvstore_pb2_grpc.add_KvStoreServicer_to_server,
        KvStoreServicer(store.catalog, heartbeat_interval, draining),
    )
    await server.set_serving()
    try:
        yield address
    finally:
        await server.close()


@asynccontextmanager
async def directory_of(kvstore: str, *, grace: float = 30.0) -> AsyncIterator[Directory]:
    """A router's view of the mesh."""
    directory = Directory(kvstore, grace=grace)
    await directory.start()
    try:
        yield directory
    finally:
        await directory.close()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[kvstore_pb2_grpc.KvStoreAsyncStub]:
    """A plain client."""
    async with open_channel(address) as channel:
        yield kvstore_pb2_grpc.KvStoreStub(channel)


async def index_of(stub: kvstore_pb2_grpc.KvStoreAsyncStub) -> dict[str, set[bytes]]:
    """What the kvstore believes that each worker holds."""
    response = await stub.Snapshot(
        kvstore_pb2.SnapshotRequest(include_blocks=True), timeout=DEADLINE_S
    )
    return {
        worker.worker.worker_id: {
            worker.block_hashes[start : start + 16]
            for start in range(0, len(worker.block_hashes), 16)
        }
        for worker in response.workers
    }


async def index_becomes(
    stub: kvstore_pb2_grpc.KvStoreAsyncStub, expected: Mapping[str, set[bytes]]
) -> None:
    """Wait until the kvstore believes exactly this; fail when that takes longer than DEADLINE_S."""
    deadline = time.monotonic() + DEADLINE_S
    while (believed := await index_of(stub)) != expected:
        assert time.monotonic() < deadline, f"{believed} did not become {expected} in time"


class PublishingWorker:
    """A real engine over the fake runner, with its publisher, as a worker process has them."""

    def __init__(
        self, kvstore: str, info: types_pb2.WorkerInfo, *, first: int | None = None
    ) -> None:
        self.info = info
        self.engine = FakeEngine(num_blocks=info.block_count, block_size=4)
        self.publisher = Publisher(kvstore, info, self.engine, links=tuple, first=first)
        self.cached: set[bytes] = set()
        """What the engine's cache holds, by its own steps."""
        self._num_finished = 0
        self._num_submitted = 0

    async def __aenter__(self) -> PublishingWorker:
        loop = asyncio.get_running_loop()

        def listen(step: StepOutput) -> None:
            loop.call_soon_threadsafe(self._on_step, step)

        self.engine.start(listen)
        self.publisher.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.publisher.close()
        await asyncio.to_thread(self.engine.stop)

    async def generate(self, prompt: Sequence[int], max_tokens: int = 1) -> None:
        """Run a request to its end, so that its full blocks enter the cache."""
        self._num_submitted += 1
        request_id = f"request-{self._num_submitted}"
        sampling = SamplingParams(max_tokens=max_tokens)
        self.engine.submit(EngineRequest(request_id, tuple(prompt), sampling))
        await eventually(lambda: self._num_finished == self._num_submitted)

    def _on_step(self, step: StepOutput) -> None:
        self.cached -= set(step.removed_block_hashes)
        self.cached |= set(step.stored_block_hashes)
        self._num_finished += sum(output.finish_reason is not None for output in step.outputs)
        self.publisher.on_step(step)
