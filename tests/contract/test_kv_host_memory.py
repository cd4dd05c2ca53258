"""Workers on one host: KV is copied out of the sender's memory, which is let go of with the last stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.kv_transfer import transports
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.rpc.channels import host_identity, open_channel
from pagemesh.v1 import decode_pb2, kv_transfer_pb2, prefill_pb2, prefill_pb2_grpc, types_pb2
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.support.kv_messages import KvMessage, read_messages
from tests.support.mappings import num_read_only_mappings
from tests.support.saboteur import sabotaged_role
from tests.support.waiting import wait_until
from tests.support.witness import Witness
from tests.support.workers import RouterSession, RunningWorker, running_worker

pytestmark = pytest.mark.usefixtures("settled_heap")

PROMPT = [10 + (7 * i) % 900 for i in range(150)]
NUM_TOKENS = 12
SMALL_CHUNKS = SchedulerConfig(8, max_num_batched_tokens=32)


@pytest.fixture(autouse=True)
def two_blocks_per_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have also the fake's tiny blocks travel in several messages."""
    monkeypatch.setattr(transports, "HOST_PART_BYTES", 1024)


def shared_engine() -> FakeEngine:
    return FakeEngine(scheduler=SMALL_CHUNKS, shared=True)


@pytest.fixture
async def decode() -> AsyncIterator[RunningWorker]:
    before = num_read_only_mappings()
    async with running_worker(DECODE_ROLE, FakeEngine(shared=True)) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of decode free")
    assert num_read_only_mappings() == before


@pytest.fixture
async def prefill() -> AsyncIterator[RunningWorker]:
    async with running_worker(PREFILL_ROLE, shared_engine()) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of prefill free")


async def assert_same_tokens(decode: RunningWorker, plan: decode_pb2.PrefillPlan) -> None:
    async with RouterSession(decode.address) as session:
        received = await session.generate(1, PROMPT, max_tokens=NUM_TOKENS, plan=plan)
    assert received.error is None
    assert tuple(received.token_ids) == expected_tokens(PROMPT, NUM_TOKENS)


def outcomes(decode: RunningWorker, outcome: str) -> float:
    return decode.sample("pagemesh:remote_prefills_total", outcome=outcome)


async def test_no_kv_travels_between_workers_on_one_host(decode: RunningWorker) -> None:
    witness = Witness()
    async with running_worker(sabotaged_role(witness), shared_engine()) as prefill:
        await assert_same_tokens(decode, prefill.plan)
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
        assert prefill.sample("pagemesh:kv_blocks_sent_total", rpc="prefill") == 10
    assert len(witness.streams) == 1
    assert witness.payloads(0) == 0
    assert outcomes(decode, "complete") == 1
    assert decode.sample("pagemesh:kv_tokens_received_total") == 150
    assert decode.sample("pagemesh:kv_bytes_received_total") == 10 * 512


async def test_kv_is_pulled_out_of_the_memory_of_its_holder(decode: RunningWorker) -> None:
    async with running_worker(DECODE_ROLE, FakeEngine(shared=True)) as holder:
        async with RouterSession(holder.address) as session:
            await session.generate(1, PROMPT[:100], max_tokens=1)
        plan = decode_pb2.PrefillPlan(source=holder.source(6))
        await assert_same_tokens(decode, plan)
        await wait_until(holder.all_blocks_free, "all blocks of the holder free")
        assert holder.sample("pagemesh:kv_blocks_sent_total", rpc="fetch") == 6
    assert outcomes(decode, "pulled") == 1


async def test_many_streams_at_once_share_one_mapping(
    decode: RunningWorker, prefill: RunningWorker
) -> None:
    before = num_read_only_mappings()
    most = 0
    prompts = {handle: [handle, *PROMPT[: 9 * handle]] for handle in range(1, 12)}
    async with RouterSession(decode.address) as session:
        for handle, prompt in prompts.items():
            await session.submit(handle, prompt, plan=prefill.plan, seed=handle)
        for handle, prompt in prompts.items():
            most = max(most, num_read_only_mappings() - before)
            received = await session.over(handle)
            assert tuple(received.token_ids) == expected_tokens(prompt, 8, seed=handle), handle
    assert most <= 1
    assert outcomes(decode, "complete") >= 10


def another_nonce(message: KvMessage) -> None:
    if message.kind == "header" and message.header.HasField("memory"):
        message.header.memory.nonce = bytes(16)


def another_process(message: KvMessage) -> None:
    if message.kind == "header" and message.header.HasField("memory"):
        message.header.memory.process_id = 2**22 + 1


@pytest.mark.parametrize("change", [another_nonce, another_process], ids=["nonce", "process"])
async def test_memory_out_of_reach_is_tried_once(
    decode: RunningWorker, change: Callable[[KvMessage], None]
) -> None:
    witness = Witness(change)
    async with running_worker(sabotaged_role(witness), shared_engine()) as prefill:
        await assert_same_tokens(decode, prefill.plan)
        assert [witness.payloads(0), witness.payloads(1)] == [0, 10 * 512]
        async with RouterSession(decode.address) as session:
            await session.generate(1, PROMPT[::-1], plan=prefill.plan)
        # What the first one sent cannot be taken for the second one's.
        nonces = {stream[0].content.stamp.stream_nonce for stream in witness.streams}
        assert len(nonces) == len(witness.streams) == 3
        assert witness.payloads(2) == 10 * 512
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
    assert outcomes(decode, "complete") == 2
    assert decode.sample("pagemesh:kv_tokens_received_total") == 300


async def test_blocks_that_change_under_the_receiver_are_never_used(decode: RunningWorker) -> None:
    # In one step, so that nobody computes with the block later.
    engine = FakeEngine(shared=True)

    def overwrite_the_third_block(message: KvMessage) -> None:
        if message.kind == "blocks" and message.blocks.first_block_index == 2:
            engine.kv.write(list(message.blocks.memory_blocks.block_ids[:1]), 0, 1, bytes(256))

    witness = Witness(overwrite_the_third_block)
    async with running_worker(sabotaged_role(witness), engine) as prefill:
        await assert_same_tokens(decode, prefill.plan)
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
    reason = "KV_WRONG_CHECKSUM"
    assert decode.sample("pagemesh:kv_rejected_total", reason=reason) == 1
    assert decode.sample("pagemesh:kv_tokens_received_total") == 32
    assert outcomes(decode, "fallback") == 1


def raw_request(prefill: RunningWorker) -> prefill_pb2.PrefillRequest:
    return prefill_pb2.PrefillRequest(
        prompt_token_ids=PROMPT,
        sampling=types_pb2.SamplingParams(max_tokens=4),
        model_fingerprint="fake",
        kv_layout=prefill.worker.info.kv_layout,
        caller_host=host_identity(),
    )


async def read_until_token(
    call: grpc.aio.UnaryStreamCall[prefill_pb2.PrefillRequest, kv_transfer_pb2.KvChunk],
) -> None:
    """Read the blocks and the token, whichever comes last."""
    kinds: list[str | None] = []
    num_blocks = 0
    while num_blocks < 10 or "first_token" not in kinds:
        chunk = await call.read()
        assert isinstance(chunk, kv_transfer_pb2.KvChunk)
        message = KvMessage.of_chunk(chunk)
        kinds.append(message.kind)
        num_blocks += message.blocks.block_count


@pytest.mark.parametrize("how", ["cancel", "deadline", "break"])
async def test_the_sender_keeps_its_blocks_until_the_receiver_ends_the_stream(
    prefill: RunningWorker, how: str
) -> None:
    async with open_channel(prefill.address) as channel:
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        call = stub.Prefill(raw_request(prefill), timeout=1.0 if how == "deadline" else 20.0)
        await read_until_token(call)
        for _ in range(3):
            await prefill.step_has_passed()
        assert prefill.worker.engine.load().num_free_blocks == 64 - 10
        if how == "cancel":
            call.cancel()
        elif how == "deadline":
            # Whichever side's clock says so first.
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call.read()
            assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        else:
            await channel.close()
        await wait_until(prefill.all_blocks_free, "all blocks free")


async def test_nobody_keeps_blocks_without_a_deadline(prefill: RunningWorker) -> None:
    # A channel of its own: those of the mesh give every call a deadline.
    async with grpc.aio.insecure_channel(prefill.address) as channel:
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="the call has no deadline") as caught:
            await read_messages(stub.Prefill(raw_request(prefill)))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert prefill.all_blocks_free()


@pytest.mark.parametrize("field", ["boot_id", "pid_namespace", "user_id", "all"])
async def test_a_caller_from_elsewhere_gets_its_kv_in_messages(
    prefill: RunningWorker, field: str
) -> None:
    request = raw_request(prefill)
    if field == "all":
        request.ClearField("caller_host")
    else:
        value = "other" if field == "boot_id" else 12345
        setattr(request.caller_host, field, value)
    async with open_channel(prefill.address) as channel:
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        messages = await read_messages(stub.Prefill(request, timeout=10))
    assert not messages[0].header.HasField("memory")
    assert sum(len(message.payload) for message in messages) == 10 * 512


@pytest.mark.parametrize("how", ["cancel", "break", "deadline"])
async def test_ending_a_request_ends_the_reading_and_frees_both_sides(
    decode: RunningWorker, how: str
) -> None:
    before = num_read_only_mappings()
    engine = FakeEngine(seconds_per_token=0.05, scheduler=SMALL_CHUNKS, shared=True)
    async with (
        running_worker(PREFILL_ROLE, engine) as prefill,
        RouterSession(decode.address) as session,
    ):
        time_limit = 2.5 if how == "deadline" else 20.0
        await session.submit(1, PROMPT, max_tokens=300, plan=prefill.plan, time_limit=time_limit)
        await wait_until(lambda: num_read_only_mappings() > before, "the memory is mapped")
        if how == "cancel":
            await session.cancel(1)
        elif how == "break":
            session.call.cancel()
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
        await wait_until(decode.all_blocks_free, "all blocks of decode free")


async def test_a_worker_may_keep_its_memory_to_itself(
    decode: RunningWorker, prefill: RunningWorker
) -> None:
    async with running_worker(PREFILL_ROLE, FakeEngine()) as private:
        async with RouterSession(decode.address) as session:
            for handle, worker in ((1, private), (2, prefill)):
                prompt = [handle, *PROMPT]
                received = await session.generate(handle, prompt, plan=worker.plan)
                assert tuple(received.token_ids) == expected_tokens(prompt, 8)
        await wait_until(private.all_blocks_free, "all blocks free")
    assert outcomes(decode, "complete") == 2
