"""KvTransfer.Fetch over a real gRPC connection: cached blocks by name, pinned while the stream is open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc
import numpy as np
import pytest

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.kv_transfer.fetch import KvTransferServicer
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import kv_transfer_pb2, kv_transfer_pb2_grpc
from pagemesh.worker.server import Role
from tests.fakes.engine import FakeEngine
from tests.support.kv_messages import KvMessage, read_messages
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession, RunningWorker, direct_call, running_worker

PROMPT = [10 + (3 * i) % 900 for i in range(70)]
NAMES = hash_blocks(root_hash("fake", 16, "float32", b""), PROMPT, 16)


@pytest.fixture
async def holder() -> AsyncIterator[RunningWorker]:
    """A decode worker that holds the four full blocks of PROMPT."""
    async with running_worker(DECODE_ROLE, FakeEngine()) as running:
        async with RouterSession(running.address) as session:
            await session.generate(1, PROMPT, max_tokens=1)
        yield running
        await wait_until(running.all_blocks_free, "all blocks free")


def make_request(
    worker: RunningWorker, names: Sequence[bytes], fingerprint: str = "fake"
) -> kv_transfer_pb2.FetchRequest:
    return kv_transfer_pb2.FetchRequest(
        block_hashes=names,
        model_fingerprint=fingerprint,
        kv_layout=worker.worker.info.kv_layout,
    )


async def fetch(worker: RunningWorker, request: kv_transfer_pb2.FetchRequest) -> list[KvMessage]:
    async with open_channel(worker.address) as channel:
        stub: kv_transfer_pb2_grpc.KvTransferAsyncStub = kv_transfer_pb2_grpc.KvTransferStub(
            channel
        )
        return await read_messages(stub.Fetch(request, timeout=10))


async def test_cached_blocks_are_handed_out(holder: RunningWorker) -> None:
    messages = await fetch(holder, make_request(holder, NAMES))
    assert messages[0].header.block_count == 4
    assert len(messages) == 2
    blocks = messages[1].blocks
    assert (blocks.first_block_index, blocks.block_count, blocks.token_count) == (0, 4, 64)
    assert list(blocks.block_hashes) == NAMES
    values = np.frombuffer(messages[1].payload, np.float32).reshape(2, 2, 64, 1, 2)
    assert values[0, 0, :, 0, 0].astype(int).tolist() == PROMPT[:64]
    assert holder.sample("pagemesh:kv_blocks_sent_total", rpc="fetch") == 4


async def test_only_the_leading_run_that_is_held_is_handed_out(holder: RunningWorker) -> None:
    names = [*NAMES[:2], b"x" * 16, *NAMES[2:]]
    messages = await fetch(holder, make_request(holder, names))
    assert messages[0].header.block_count == 2
    assert list(messages[1].blocks.block_hashes) == NAMES[:2]


async def test_unknown_blocks_give_an_empty_stream(holder: RunningWorker) -> None:
    messages = await fetch(holder, make_request(holder, [b"x" * 16]))
    assert [message.header.block_count for message in messages] == [0]


@pytest.mark.parametrize("role", [PREFILL_ROLE, DECODE_ROLE], ids=["prefill", "decode"])
async def test_every_worker_serves_it(role: Role) -> None:
    async with running_worker(role, FakeEngine()) as worker:
        messages = await fetch(worker, make_request(worker, NAMES))
        assert [message.header.block_count for message in messages] == [0]


async def test_another_model_is_refused(holder: RunningWorker) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="model_fingerprint is 'other'") as caught:
        await fetch(holder, make_request(holder, NAMES, fingerprint="other"))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("arithmetic", ["cpu-amx-bfloat16", ""], ids=["another", "not told"])
async def test_a_caller_of_another_arithmetic_is_refused_with_both_names(arithmetic: str) -> None:
    engine = FakeEngine(arithmetic="cpu-fma-float32")
    async with running_worker(DECODE_ROLE, engine) as worker:
        request = make_request(worker, NAMES)
        request.arithmetic = arithmetic
        named = arithmetic or "one that is not named"
        message = f"the caller's arithmetic is {named}, but that of .* is cpu-fma-float32"
        with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
            await fetch(worker, request)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        request.arithmetic = "cpu-fma-float32"
        assert [each.header.block_count for each in await fetch(worker, request)] == [0]


async def test_a_name_of_the_wrong_size_is_refused(holder: RunningWorker) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="16 bytes") as caught:
        await fetch(holder, make_request(holder, [b"short"]))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_place_behind_the_longest_prompt_is_refused(holder: RunningWorker) -> None:
    request = make_request(holder, NAMES)
    request.first_block_index = 29  # of 32 blocks, the last three and one more
    message = "first_block_index is 29 and 4 blocks are named, but the longest prompt has 32 blocks"
    with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
        await fetch(holder, request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_nobody_pins_blocks_without_a_deadline(holder: RunningWorker) -> None:
    # A channel of its own: those of the mesh give every call a deadline.
    async with grpc.aio.insecure_channel(holder.address) as channel:
        stub: kv_transfer_pb2_grpc.KvTransferAsyncStub = kv_transfer_pb2_grpc.KvTransferStub(
            channel
        )
        with pytest.raises(grpc.aio.AioRpcError, match="the call has no deadline") as caught:
            await read_messages(stub.Fetch(make_request(holder, NAMES)))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await wait_until(holder.all_blocks_free, "all blocks free")


async def test_blocks_are_pinned_as_long_as_the_stream_is_open(holder: RunningWorker) -> None:
    stream = KvTransferServicer(holder.worker).Fetch(make_request(holder, NAMES), direct_call())
    await anext(stream)
    await holder.step_has_passed()
    assert holder.worker.engine.load().num_free_blocks == 60
    await stream.aclose()
    await wait_until(holder.all_blocks_free, "all blocks free")
