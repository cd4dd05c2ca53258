"""The kvstore's RPCs over real gRPC, good input and bad."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TypeAlias

import grpc
import pytest

from pagemesh.rpc.status import from_rpc_error
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2
from tests.contract.kvstore_harness import connected, index_becomes, index_of, running_kvstore
from tests.fakes.clock import FakeClock
from tests.unit.kvstore.builders import make_blocks, make_worker

Stub: TypeAlias = "kvstore_pb2_grpc.KvStoreAsyncStub"
PublishCall = grpc.aio.StreamStreamCall[kvstore_pb2.PublishRequest, kvstore_pb2.PublishResponse]


async def register(stub: Stub, info: types_pb2.WorkerInfo) -> kvstore_pb2.RegisterResponse:
    return await stub.Register(kvstore_pb2.RegisterRequest(worker=info), timeout=5)


def stored(
    sequence: int, *numbers: int, worker_id: str = "a", epoch: int = 1
) -> kvstore_pb2.PublishRequest:
    return kvstore_pb2.PublishRequest(
        worker_id=worker_id,
        epoch=epoch,
        sequence=sequence,
        stored=kvstore_pb2.BlocksStored(block_hashes=b"".join(make_blocks(*numbers))),
    )


async def publish(stub: Stub, *requests: kvstore_pb2.PublishRequest) -> PublishCall:
    """A stream on which these events were sent."""
    call: PublishCall = stub.Publish(timeout=30)
    for request in requests:
        await call.write(request)
    return call


async def lookup(stub: Stub, *numbers: int, fingerprint: str = "model-a") -> dict[str, int]:
    request = kvstore_pb2.LookupRequest(
        block_hashes=b"".join(make_blocks(*numbers)), model_fingerprint=fingerprint
    )
    response = await stub.Lookup(request, timeout=5)
    return {holder.worker_id: holder.block_count for holder in response.holders}


async def test_published_blocks_are_found_until_the_stream_ends() -> None:
    # Long heartbeats: only the end of the stream can be what removes the worker.
    async with (
        running_kvstore(heartbeat_interval=60.0) as address,
        connected(address) as stub,
    ):
        answer = await register(stub, make_worker("a"))
        assert answer.heartbeat_interval_ms == 60_000
        call = await publish(stub, stored(1, 1, 2))
        await index_becomes(stub, {"a": set(make_blocks(1, 2))})
        assert await lookup(stub, 1, 2, 3) == {"a": 2}
        assert await lookup(stub, 1, fingerprint="model-b") == {}
        call.cancel()
        await index_becomes(stub, {})
        assert await lookup(stub, 1) == {}


async def test_a_gap_is_answered_with_resync_and_the_snapshot_gives_the_exact_set() -> None:
    async with running_kvstore() as address, connected(address) as stub:
        await register(stub, make_worker("a"))
        call = await publish(stub, stored(1, 1, 2), stored(5, 3))
        response = await call.read()
        assert isinstance(response, kvstore_pb2.PublishResponse)
        assert response.resync
        assert await index_of(stub) == {"a": set()}
        cleared = kvstore_pb2.BlocksCleared()
        await call.write(
            kvstore_pb2.PublishRequest(worker_id="a", epoch=1, sequence=6, cleared=cleared)
        )
        await call.write(stored(7, 2, 3, 4))
        await index_becomes(stub, {"a": set(make_blocks(2, 3, 4))})
        call.cancel()


async def test_a_worker_that_falls_silent_is_dropped_though_its_stream_is_open() -> None:
    clock = FakeClock()
    async with (
        running_kvstore(heartbeat_interval=0.1, clock=clock) as address,
        connected(address) as stub,
    ):
        await register(stub, make_worker("a"))
        call = await publish(stub, stored(1, 1))
        await index_becomes(stub, {"a": set(make_blocks(1))})
        clock.advance(0.4)
        await index_becomes(stub, {})
        await call.write(stored(2, 2))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert from_rpc_error(caught.value).reason == "UNKNOWN_WORKER"


@pytest.mark.parametrize(
    ("request_", "reason", "param"),
    [
        (stored(1, 1, worker_id="nobody"), "UNKNOWN_WORKER", "worker_id"),
        (stored(1, 1, epoch=1), "STALE_EPOCH", "epoch"),
        (stored(1, 1, epoch=3), "UNKNOWN_WORKER", "worker_id"),
        (stored(0, 1, epoch=2), "INVALID_REQUEST", "sequence"),
        (
            kvstore_pb2.PublishRequest(worker_id="a", epoch=2, sequence=1),
            "INVALID_REQUEST",
            "event",
        ),
        (
            kvstore_pb2.PublishRequest(
                worker_id="a",
                epoch=2,
                sequence=1,
                removed=kvstore_pb2.BlocksRemoved(block_hashes=b"x" * 17),
            ),
            "INVALID_REQUEST",
            "removed.block_hashes",
        ),
        (
            kvstore_pb2.PublishRequest(
                worker_id="a",
                epoch=2,
                sequence=1,
                digest=kvstore_pb2.CacheDigest(block_count=1, names_xor=b"x" * 15),
            ),
            "INVALID_REQUEST",
            "digest.names_xor",
        ),
        (stored(1, *range(16_385), epoch=2), "INVALID_REQUEST", "stored.block_hashes"),
        (
            kvstore_pb2.PublishRequest(
                worker_id="a",
                epoch=2,
                sequence=1,
                load=types_pb2.WorkerLoad(links=[types_pb2.LinkRate(worker_id="b")] * 100_000),
            ),
            "INVALID_REQUEST",
            "load",
        ),
    ],
    ids=[
        *("unknown-worker", "old-epoch", "future-epoch", "no-sequence"),
        *("no-event", "odd-hash", "odd-digest", "long-event", "many-links"),
    ],
)
async def test_bad_events_are_refused_by_name_and_disturb_nobody(
    request_: kvstore_pb2.PublishRequest, reason: str, param: str
) -> None:
    async with running_kvstore() as address, connected(address) as stub:
        await register(stub, make_worker("a", epoch=2))
        await register(stub, make_worker("good"))
        good = await publish(stub, stored(1, 1, worker_id="good"))
        call = await publish(stub, request_)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        error = from_rpc_error(caught.value)
        assert (error.reason, error.param) == (reason, param)
        await good.write(stored(2, 2, worker_id="good"))
        await index_becomes(stub, {"a": set(), "good": set(make_blocks(1, 2))})
        good.cancel()


async def test_one_stream_speaks_for_one_worker() -> None:
    async with running_kvstore() as address, connected(address) as stub:
        await register(stub, make_worker("a"))
        await register(stub, make_worker("b"))
        call = await publish(stub, stored(1, 1), stored(2, 2, worker_id="b"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert from_rpc_error(caught.value).param == "worker_id"
        assert (await index_of(stub)).get("b") == set()


@pytest.mark.parametrize(
    ("num_bytes", "message"),
    [
        (15, "15 bytes, but must have a multiple of 16"),
        (16 * 16_385, "16385 hashes, but 16384"),
        (16 * 1_000_000, "1000000 hashes, but 16384"),
    ],
    ids=["odd", "long", "a-million"],
)
async def test_bad_lookups_are_refused_by_name(num_bytes: int, message: str) -> None:
    async with running_kvstore() as address, connected(address) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Lookup(kvstore_pb2.LookupRequest(block_hashes=b"x" * num_bytes), timeout=5)
        error = from_rpc_error(caught.value)
        assert (error.grpc_code, error.param) == ("INVALID_ARGUMENT", "block_hashes")
        assert message in error.message


async def test_a_lookup_beyond_what_a_message_may_be_is_refused_and_disturbs_nobody() -> None:
    async with running_kvstore() as address, connected(address) as stub:
        await register(stub, make_worker("a"))
        call = await publish(stub, stored(1, 1))
        # As a client without limits of its own.
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            endless = kvstore_pb2.LookupRequest(block_hashes=bytes(16 * 3_000_000))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await kvstore_pb2_grpc.KvStoreStub(channel).Lookup(endless, timeout=30)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max (48000005 vs. 41943040)" in (caught.value.details() or "")
        assert await lookup(stub, 1) == {"a": 1}
        call.cancel()


async def test_a_watch_tells_members_loads_and_departures() -> None:
    async with running_kvstore() as address, connected(address) as stub:
        await register(stub, make_worker("a"))
        watch = stub.Watch(kvstore_pb2.WatchRequest(), timeout=30)
        seen: list[str | None] = []

        async def next_event() -> kvstore_pb2.WatchResponse:
            response = await watch.read()
            assert isinstance(response, kvstore_pb2.WatchResponse)
            seen.append(response.WhichOneof("event"))
            return response

        assert (await next_event()).joined == make_worker("a")
        await next_event()
        load = types_pb2.WorkerLoad(
            running_request_count=3,
            prefill_rate=types_pb2.PrefillRate(seconds_per_token=0.5, step_token_count=512),
            links=[types_pb2.LinkRate(worker_id="b", bytes_per_second=1e9, latency_seconds=0.25)],
        )
        call = await publish(
            stub, kvstore_pb2.PublishRequest(worker_id="a", epoch=1, sequence=1, load=load)
        )
        assert (await next_event()).load == kvstore_pb2.LoadReport(worker_id="a", load=load)
        call.cancel()
        assert (await next_event()).left == "a"
        assert seen == ["joined", "synced", "load", "left"]
        watch.cancel()


async def test_a_revision_of_an_earlier_process_is_not_taken_for_one_of_a_later() -> None:
    synced: list[tuple[str, int]] = []
    for worker_id in ("a", "b"):
        async with running_kvstore() as address, connected(address) as stub:
            await register(stub, make_worker(worker_id))
            log_id, revision = synced[0] if synced else ("", 0)
            request = kvstore_pb2.WatchRequest(after_revision=revision, log_id=log_id)
            watch = stub.Watch(request, timeout=30)
            changes = []
            async for change in watch:
                changes.append(change.WhichOneof("event"))
                if change.HasField("synced"):
                    synced.append((change.synced.log_id, change.revision))
                    break
            assert changes == (["resync"] if revision else []) + ["joined", "synced"]
            watch.cancel()
    # Both have counted one worker; only the names of their logs tell them apart.
    assert synced[0][1] == synced[1][1]


async def test_stopping_ends_open_streams_without_waiting_for_their_clients() -> None:
    async with AsyncExitStack() as kvstore:
        address = await kvstore.enter_async_context(running_kvstore())
        async with connected(address) as stub:
            await register(stub, make_worker("a"))
            watch = stub.Watch(kvstore_pb2.WatchRequest(), timeout=30)
            call = await publish(stub, stored(1, 1))
            await index_becomes(stub, {"a": set(make_blocks(1))})
            await kvstore.aclose()
            async for _ in watch:
                pass
            # A stream that was cut off when the grace period was over would be CANCELLED.
            assert await watch.code() is grpc.StatusCode.OK
            assert await call.code() is grpc.StatusCode.OK
