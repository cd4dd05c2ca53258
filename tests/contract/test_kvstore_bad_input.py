"""A client of the kvstore is served while others send everything that has to be refused, all at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

import grpc
import pytest

from pagemesh.rpc.status import from_rpc_error
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2
from tests.contract.kvstore_harness import connected, index_becomes, running_kvstore
from tests.support.valkey import Valkey
from tests.unit.kvstore.builders import make_blocks, make_worker

Stub: TypeAlias = "kvstore_pb2_grpc.KvStoreAsyncStub"
NUM_BLOCKS = 64
NUM_ROUNDS = 4
NUM_LOOKUPS = 8
# Of a call that sends a million hashes, where others have the machine too.
CALL_TIMEOUT_S = 60
# Of this process, in which a lookup takes a few milliseconds, and its senders of 16 MB some more. What else the
# machine does takes none of it.
LONGEST_LOOKUP_CPU_S = 2.0


class Refusal(NamedTuple):
    """Something to send, and how it has to be answered."""

    send: Callable[[Stub], Awaitable[object]]
    code: str
    reason: str


def registration(info: types_pb2.WorkerInfo) -> Callable[[Stub], Awaitable[object]]:
    return lambda stub: stub.Register(
        kvstore_pb2.RegisterRequest(worker=info), timeout=CALL_TIMEOUT_S
    )


def computing(worker_id: str, arithmetic: str) -> types_pb2.WorkerInfo:
    info = make_worker(worker_id)
    info.arithmetic = arithmetic
    return info


def events(
    worker_id: str, epoch: int, num_hashes: int, sequence: int = 1
) -> Callable[[Stub], Awaitable[object]]:
    event = kvstore_pb2.PublishRequest(
        worker_id=worker_id,
        epoch=epoch,
        sequence=sequence,
        stored=kvstore_pb2.BlocksStored(block_hashes=b"x" * 16 * num_hashes),
    )

    async def send(stub: Stub) -> None:
        call = stub.Publish(timeout=CALL_TIMEOUT_S)
        await call.write(event)
        await call.read()

    return send


def lookup(hashes: bytes) -> Callable[[Stub], Awaitable[object]]:
    request = kvstore_pb2.LookupRequest(block_hashes=hashes, model_fingerprint="model-a")
    return lambda stub: stub.Lookup(request, timeout=CALL_TIMEOUT_S)


REFUSALS = {
    "unknown worker": Refusal(events("nobody", 1, 1), "FAILED_PRECONDITION", "UNKNOWN_WORKER"),
    "old epoch": Refusal(events("good", 4, 1), "FAILED_PRECONDITION", "STALE_EPOCH"),
    "long event": Refusal(events("other", 1, 16_385), "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "a million hashes": Refusal(lookup(b"x" * 16_000_000), "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "absurd count": Refusal(
        registration(make_worker("huge", num_blocks=2**33)), "INVALID_ARGUMENT", "INVALID_REQUEST"
    ),
    "a long arithmetic": Refusal(
        registration(computing("odd", "x" * 1025)), "INVALID_ARGUMENT", "INVALID_REQUEST"
    ),
    "one id twice": Refusal(
        registration(make_worker("good", epoch=5, address="127.0.0.1:7002")),
        "FAILED_PRECONDITION",
        "DUPLICATE_WORKER",
    ),
    "older incarnation": Refusal(
        registration(make_worker("good", epoch=4)), "FAILED_PRECONDITION", "STALE_EPOCH"
    ),
    "another model": Refusal(
        registration(make_worker("odd", fingerprint="model-b")),
        "FAILED_PRECONDITION",
        "MODEL_MISMATCH",
    ),
    "another block size": Refusal(
        registration(make_worker("odd", block_size=32)), "FAILED_PRECONDITION", "LAYOUT_MISMATCH"
    ),
}


async def insist(address: str, name: str, enough: asyncio.Event) -> None:
    """Send something again and again until it is enough, each time refused as it has to be."""
    refusal = REFUSALS[name]
    num_rounds = 0
    async with connected(address) as stub:
        while num_rounds < NUM_ROUNDS or not enough.is_set():
            num_rounds += 1
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await refusal.send(stub)
            error = from_rpc_error(caught.value)
            assert (error.grpc_code, error.reason) == (refusal.code, refusal.reason), name


@pytest.mark.parametrize("index", ["memory", "redis"])
async def test_what_others_are_refused_disturbs_no_lookup(index: str, valkey: Valkey) -> None:
    blocks = b"".join(make_blocks(*range(NUM_BLOCKS)))
    stored = kvstore_pb2.PublishRequest(
        worker_id="good",
        epoch=5,
        sequence=1,
        stored=kvstore_pb2.BlocksStored(block_hashes=blocks),
    )
    asked = kvstore_pb2.LookupRequest(block_hashes=blocks, model_fingerprint="model-a")
    holder = kvstore_pb2.PrefixHolder(worker_id="good", block_count=NUM_BLOCKS)
    took = []
    # Its workers say nothing meanwhile, however long that takes.
    kvstore = running_kvstore(
        index=valkey.url if index == "redis" else index, heartbeat_interval=20.0
    )
    async with (
        kvstore as address,
        connected(address) as stub,
    ):
        for info in (make_worker("good", epoch=5), make_worker("other")):
            await registration(info)(stub)
        good = stub.Publish(timeout=CALL_TIMEOUT_S)
        await good.write(stored)
        await index_becomes(stub, {"good": set(make_blocks(*range(NUM_BLOCKS))), "other": set()})
        enough = asyncio.Event()
        others = asyncio.gather(*(insist(address, name, enough) for name in REFUSALS))
        while not others.done():
            began = time.process_time()
            answer = await stub.Lookup(asked, timeout=CALL_TIMEOUT_S)
            took.append(time.process_time() - began)
            assert list(answer.holders) == [holder]
            if len(took) == NUM_LOOKUPS:
                enough.set()
        await others
        good.cancel()
    assert max(took) < LONGEST_LOOKUP_CPU_S
