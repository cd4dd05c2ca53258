"""The index as routers and workers meet it: a kvstore process, asked and told through gRPC."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence

import grpc
from blockindex.contents import CHAIN, NAME_BYTES, holdings, new_chain
from blockindex.processes import make_worker, running_kvstore, until_known
from blockindex.valkey import running_valkey
from report import Report

from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc

NUM_BLOCKS = 1_000_000
NUM_WORKERS = 64
CHAINS_AT_ONCE = 64
EVENT = 16
NUM_EVENTS = 5000
NUM_LOOKUPS = 1000
AT_ONCE = 32
HEARTBEAT_S = 1.0


def measure(report: Report, *, quick: bool) -> None:
    """Fill a kvstore of each kind by its Publish streams, and ask it."""
    num_blocks = NUM_BLOCKS // 10 if quick else NUM_BLOCKS
    report.settings |= {"blocks": num_blocks, "workers": NUM_WORKERS, "chain": CHAIN}
    with running_kvstore("memory") as kvstore:
        asyncio.run(_measure(report, "memory", kvstore.address, num_blocks))
    with running_valkey() as url, running_kvstore(url) as kvstore:
        asyncio.run(_measure(report, "redis", kvstore.address, num_blocks))


class Streams:
    """A Publish stream for each worker; `flush` ends when all that was told is known."""

    def __init__(
        self, stub: kvstore_pb2_grpc.KvStoreAsyncStub, asking: kvstore_pb2_grpc.KvStoreStub
    ) -> None:
        """`asking` is for questions from another thread."""
        self._stub = stub
        self._asking = asking
        self._queues: dict[int, asyncio.Queue[bytes]] = {}
        self._calls: list[object] = []
        self.num_told: dict[str, int] = {}

    async def open(self, worker: int, num_blocks: int) -> None:
        info = make_worker(worker, num_blocks)
        await self._stub.Register(kvstore_pb2.RegisterRequest(worker=info), timeout=30)
        self._queues[worker] = asyncio.Queue()
        self.num_told[info.worker_id] = 0
        call = self._stub.Publish(self._requests(worker))
        # A call that is not referred to is cancelled.
        self._calls.append(call)

    def tell(self, worker: int, names: Sequence[bytes]) -> None:
        """Blocks that the worker did not have."""
        self.num_told[f"worker-{worker}"] += len(names)
        self._queues[worker].put_nowait(b"".join(names))

    async def flush(self) -> None:
        await asyncio.to_thread(until_known, self._asking, self.num_told, beside=True)

    async def _requests(self, worker: int) -> AsyncIterator[kvstore_pb2.PublishRequest]:
        sequence = 0
        while True:
            sequence += 1
            request = kvstore_pb2.PublishRequest(
                worker_id=f"worker-{worker}", epoch=1, sequence=sequence
            )
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    request.stored.block_hashes = await self._queues[worker].get()
            except TimeoutError:
                request.load.SetInParent()
            yield request


async def _measure(report: Report, kind: str, address: str, num_blocks: int) -> None:
    with grpc.insecure_channel(address) as asking:
        await _ask_and_tell(report, kind, address, num_blocks, kvstore_pb2_grpc.KvStoreStub(asking))


async def _ask_and_tell(
    report: Report,
    kind: str,
    address: str,
    num_blocks: int,
    asking: kvstore_pb2_grpc.KvStoreStub,
) -> None:
    async with open_channel(address) as channel:
        stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
        streams = Streams(stub, asking)
        for worker in range(NUM_WORKERS):
            await streams.open(worker, 2 * num_blocks)
        chains: list[list[bytes]] = []
        began_at = time.perf_counter()
        for number, (worker, names) in enumerate(holdings(num_blocks, NUM_WORKERS, CHAINS_AT_ONCE)):
            streams.tell(worker, names)
            if number % 2 == 0:
                chains.append(names[:CHAIN])
            if number % 8 == 0:
                # Or all of it would wait in queues.
                await streams.flush()
        await streams.flush()
        spent = time.perf_counter() - began_at
        told = sum(streams.num_told.values())
        report.add(f"{kind}: blocks stored, thousands in an event", "1/s", [told / spent])

        chance = random.Random(0)
        asked = [b"".join(chance.choice(chains)) for _ in range(NUM_LOOKUPS)]
        report.add(f"{kind}: lookup of {CHAIN} blocks", "ms", await _one_by_one(stub, asked))
        new = [b"".join(new_chain()) for _ in range(NUM_LOOKUPS)]
        report.add(f"{kind}: lookup, none held", "ms", await _one_by_one(stub, new))
        samples, rate = await lookups_at_once(stub, asked)
        report.add(f"{kind}: lookups, {AT_ONCE} at once", "1/s", [rate])
        report.add(f"{kind}: each of these", "ms", samples)

        began_at = time.perf_counter()
        for number in range(NUM_EVENTS):
            streams.tell(number % NUM_WORKERS, new_chain(EVENT))
        await streams.flush()
        spent = time.perf_counter() - began_at
        report.add(f"{kind}: events of {EVENT} blocks", "1/s", [NUM_EVENTS / spent])


async def _lookup(stub: kvstore_pb2_grpc.KvStoreAsyncStub, packed: bytes) -> float:
    """Milliseconds."""
    assert len(packed) == CHAIN * NAME_BYTES
    request = kvstore_pb2.LookupRequest(block_hashes=packed, model_fingerprint="model")
    began_at = time.perf_counter()
    await stub.Lookup(request, timeout=10)
    return 1e3 * (time.perf_counter() - began_at)


async def _one_by_one(
    stub: kvstore_pb2_grpc.KvStoreAsyncStub, asked: Sequence[bytes]
) -> list[float]:
    return [await _lookup(stub, packed) for packed in asked]


async def lookups_at_once(
    stub: kvstore_pb2_grpc.KvStoreAsyncStub, asked: Sequence[bytes]
) -> tuple[list[float], float]:
    waiting = iter(asked)
    samples: list[float] = []

    async def ask() -> None:
        for packed in waiting:
            samples.append(await _lookup(stub, packed))

    began_at = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    return samples, len(asked) / (time.perf_counter() - began_at)
