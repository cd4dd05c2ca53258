"""Several kvstores on one real Valkey: what a worker tells one of them, all know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack

import grpc
import pytest
import pytest_asyncio

from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2
from tests.contract.kvstore_harness import (
    DEADLINE_S,
    PublishingWorker,
    connected,
    running_kvstore,
)
from tests.support.valkey import Valkey
from tests.unit.kvstore.builders import make_worker

FINGERPRINT = "model-a"


@pytest_asyncio.fixture
async def one(valkey: Valkey) -> AsyncIterator[str]:
    async with running_kvstore(index=valkey.url, heartbeat_interval=0.1) as address:
        yield address


@pytest_asyncio.fixture
async def two(valkey: Valkey) -> AsyncIterator[str]:
    async with running_kvstore(index=valkey.url, heartbeat_interval=0.1) as address:
        yield address


async def members_of(stub: kvstore_pb2_grpc.KvStoreAsyncStub) -> dict[str, int]:
    """Epochs of the members that a kvstore knows."""
    response = await stub.Snapshot(kvstore_pb2.SnapshotRequest(), timeout=5)
    return {worker.worker.worker_id: worker.worker.epoch for worker in response.workers}


async def members_become(
    stub: kvstore_pb2_grpc.KvStoreAsyncStub, expected: Mapping[str, int]
) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while (members := await members_of(stub)) != expected:
        assert loop.time() < deadline, f"{members} did not become {expected} in time"
        await asyncio.sleep(0.01)


async def register(stub: kvstore_pb2_grpc.KvStoreAsyncStub, info: types_pb2.WorkerInfo) -> None:
    await stub.Register(kvstore_pb2.RegisterRequest(worker=info), timeout=5)


async def refusal(stub: kvstore_pb2_grpc.KvStoreAsyncStub, info: types_pb2.WorkerInfo) -> str:
    """What a registration is refused with."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await register(stub, info)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return refused.value.details() or ""


async def becomes_known(stub: kvstore_pb2_grpc.KvStoreAsyncStub, worker: PublishingWorker) -> None:
    """Wait until a lookup says that a worker holds each block that it has cached, one by one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    holder = kvstore_pb2.PrefixHolder(worker_id=worker.info.worker_id, block_count=1)
    for block in worker.cached:
        lookup = kvstore_pb2.LookupRequest(block_hashes=block, model_fingerprint=FINGERPRINT)
        while list((await stub.Lookup(lookup, timeout=5)).holders) != [holder]:
            assert loop.time() < deadline, "a block did not become known in time"
            await asyncio.sleep(0.01)


def events_of(changes: list[kvstore_pb2.WatchResponse]) -> list[str]:
    return [change.WhichOneof("event") or "" for change in changes]


async def test_a_worker_of_one_replica_is_known_to_all_with_its_load_and_its_blocks(
    one: str, two: str
) -> None:
    async with (
        connected(two) as other,
        PublishingWorker(one, make_worker("a", num_blocks=32)) as worker,
    ):
        watch = other.Watch(kvstore_pb2.WatchRequest(), timeout=30)
        await worker.generate(range(20, 25))
        await becomes_known(other, worker)
        free_block_count = 0
        async for change in watch:
            free_block_count = change.load.load.free_block_count or free_block_count
            if free_block_count:
                break
        assert free_block_count == 32
        watch.cancel()
    async with connected(two) as other:
        await members_become(other, {})


async def test_a_replica_that_starts_later_knows_the_members_before_it_serves(
    valkey: Valkey, one: str
) -> None:
    async with connected(one) as stub:
        await register(stub, make_worker("a"))
        await register(stub, make_worker("b"))
        async with running_kvstore(index=valkey.url) as late, connected(late) as other:
            changes = []
            async for change in other.Watch(kvstore_pb2.WatchRequest(), timeout=30):
                changes.append(change)
                if change.HasField("synced"):
                    break
            assert events_of(changes) == ["joined", "joined", "synced"]


async def test_epochs_names_and_layouts_are_checked_across_replicas(one: str, two: str) -> None:
    async with connected(one) as stub, connected(two) as other:
        await register(stub, make_worker("a", epoch=5))
        # At once, before the other one can have heard of it.
        assert "comes with epoch 4, but epoch 5 is registered" in await refusal(
            other, make_worker("a", epoch=4)
        )
        assert "is already registered from 127.0.0.1:7001, now it comes from" in await refusal(
            other, make_worker("a", epoch=5, address="127.0.0.1:7002")
        )
        assert "has KV blocks of 32 tokens" in await refusal(other, make_worker("b", block_size=32))
        await register(other, make_worker("a", epoch=6))
        await members_become(stub, {"a": 6})
        assert "epoch 6 is registered" in await refusal(stub, make_worker("a", epoch=5))


async def test_epochs_are_compared_in_all_their_64_bits(one: str, two: str) -> None:
    async with connected(one) as stub, connected(two) as other:
        await register(stub, make_worker("a", epoch=2**63 + 1))
        await refusal(other, make_worker("a", epoch=2**63))
        await register(other, make_worker("a", epoch=2**63 + 2))
        await members_become(stub, {"a": 2**63 + 2})


async def test_a_worker_that_moved_is_not_dropped_when_its_old_stream_ends(
    one: str, two: str
) -> None:
    info = make_worker("a", num_blocks=8)
    async with connected(one) as stub, connected(two) as other:
        watches = [s.Watch(kvstore_pb2.WatchRequest(), timeout=30) for s in (stub, other)]
        for watch in watches:
            assert (await anext(aiter(watch))).HasField("synced")
        await register(stub, info)
        old = stub.Publish(timeout=30)
        beat = types_pb2.WorkerLoad(free_block_count=8)
        await old.write(kvstore_pb2.PublishRequest(worker_id="a", epoch=1, sequence=1, load=beat))
        await members_become(other, {"a": 1})
        async with PublishingWorker(two, info) as worker:
            await worker.generate(range(20, 25))
            await becomes_known(other, worker)
            # Its stream to the first one breaks only now.
            old.cancel()
            await worker.generate(range(40, 49))
            await becomes_known(stub, worker)
        for watch in watches:
            told = []
            async for change in watch:
                told.append(change.WhichOneof("event"))
                if change.HasField("left"):
                    break
            # Whoever watches either of them has never heard that it moved.
            assert [event for event in told if event != "load"] == ["joined", "left"]


async def test_workers_of_a_replica_that_stopped_are_dropped_unless_they_move_in_time(
    valkey: Valkey, two: str
) -> None:
    async with AsyncExitStack() as life, connected(two) as other:
        one = await life.enter_async_context(
            running_kvstore(index=valkey.url, heartbeat_interval=0.1)
        )
        async with connected(one) as stub:
            await register(stub, make_worker("stays-away"))
        moving = PublishingWorker(f"{one},{two}", make_worker("moves", num_blocks=8), first=0)
        async with moving:
            await members_become(other, {"stays-away": 1, "moves": 1})
            watch = other.Watch(kvstore_pb2.WatchRequest(), timeout=30)
            await life.aclose()
            async for change in watch:
                if change.HasField("left"):
                    assert change.left == "stays-away"
                    break
            watch.cancel()
            assert await members_of(other) == {"moves": 1}
