"""Prefill.Prefill over a real gRPC connection: what is sent, in which order, and who owns the blocks."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import grpc
import numpy as np
import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.engine import runner
from pagemesh.kv_transfer import frames
from pagemesh.kv_transfer.importer import KvImporter
from pagemesh.messages import logprobs_from_proto
from pagemesh.prefill import servicer
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.prefill.servicer import PrefillServicer
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.status import from_rpc_error
from pagemesh.v1 import kv_transfer_pb2, prefill_pb2, prefill_pb2_grpc, types_pb2
from tests.fakes.engine import FakeEngine, expected_tokens, fake_logprobs
from tests.support.kv_messages import KvMessage, read_messages
from tests.support.waiting import wait_until
from tests.support.workers import RunningWorker, direct_call, running_worker

PROMPT = [10 + (3 * i) % 900 for i in range(70)]


@pytest.fixture(autouse=True)
def one_block_per_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 512)


@pytest.fixture
async def prefill() -> AsyncIterator[RunningWorker]:
    engine = FakeEngine(scheduler=SchedulerConfig(8, max_num_batched_tokens=24))
    async with running_worker(PREFILL_ROLE, engine) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks free")


@pytest.fixture
async def stub(prefill: RunningWorker) -> AsyncIterator[prefill_pb2_grpc.PrefillAsyncStub]:
    async with open_channel(prefill.address) as channel:
        yield prefill_pb2_grpc.PrefillStub(channel)


def make_request(
    prefill: RunningWorker,
    *,
    prompt: Sequence[int] = PROMPT,
    held: int = 0,
    fingerprint: str = "fake",
    max_tokens: int = 16,
) -> prefill_pb2.PrefillRequest:
    return prefill_pb2.PrefillRequest(
        prompt_token_ids=prompt,
        sampling=types_pb2.SamplingParams(max_tokens=max_tokens),
        held_token_count=held,
        model_fingerprint=fingerprint,
        kv_layout=prefill.worker.info.kv_layout,
    )


def serve(prefill: RunningWorker, request: prefill_pb2.PrefillRequest) -> AsyncGenerator[bytes]:
    """The stream without a connection: it goes on only when it is read."""
    servicer = PrefillServicer(prefill.worker, KvImporter(prefill.worker, "remote_pull"))
    return servicer.Prefill(request, direct_call())


def slots(message: KvMessage) -> list[int]:
    """The token ids that the fake wrote as KV into the slots that hold some."""
    shape = (message.blocks.layer_count, 2, -1, 1, 2)
    values = np.frombuffer(message.payload, np.float32).reshape(shape)
    return [int(token_id) for token_id in values[0, 0, : message.blocks.token_count, 0, 0]]


def first_tokens(messages: Sequence[KvMessage]) -> list[KvMessage]:
    return [message for message in messages if message.kind == "first_token"]


async def test_a_stream_is_header_blocks_and_first_token(
    prefill: RunningWorker, stub: prefill_pb2_grpc.PrefillAsyncStub
) -> None:
    messages = await read_messages(stub.Prefill(make_request(prefill), timeout=10))
    info = prefill.worker.info
    assert [message.content.stamp for message in messages] == [
        kv_transfer_pb2.KvStamp(
            model_fingerprint="fake",
            kv_layout=info.kv_layout,
            worker_id=info.worker_id,
            epoch=info.epoch,
        )
    ] * 7
    assert messages[0].header.block_count == 5
    runs = [message for message in messages if message.kind == "blocks"]
    assert [run.blocks.first_block_index for run in runs] == [0, 1, 2, 3, 4]
    assert [run.blocks.token_count for run in runs] == [16, 16, 16, 16, 6]
    assert [len(run.blocks.block_hashes[0]) for run in runs] == [16, 16, 16, 16, 0]
    assert [token for run in runs for token in slots(run)] == PROMPT
    tokens = [message.first_token.token_id for message in first_tokens(messages)]
    assert tuple(tokens) == expected_tokens(PROMPT, 1)


async def test_the_first_token_has_its_log_probabilities_when_they_are_asked_for(
    prefill: RunningWorker, stub: prefill_pb2_grpc.PrefillAsyncStub
) -> None:
    request = make_request(prefill)
    messages = await read_messages(stub.Prefill(request, timeout=10))
    (plain,) = first_tokens(messages)
    assert not plain.first_token.HasField("logprobs")
    request.sampling.logprobs = 2
    messages = await read_messages(stub.Prefill(request, timeout=10))
    (scored,) = first_tokens(messages)
    expected = fake_logprobs(plain.first_token.token_id, 2)
    assert logprobs_from_proto(scored.first_token.logprobs) == expected


async def test_only_blocks_behind_the_held_tokens_are_sent(
    prefill: RunningWorker, stub: prefill_pb2_grpc.PrefillAsyncStub
) -> None:
    call = stub.Prefill(make_request(prefill, held=48), timeout=10)
    messages = await read_messages(call)
    assert messages[0].header.block_count == 2
    runs = [message for message in messages if message.kind == "blocks"]
    assert [run.blocks.first_block_index for run in runs] == [3, 4]
    assert [token for run in runs for token in slots(run)] == PROMPT[48:]


async def test_blocks_travel_while_later_chunks_are_computed() -> None:
    engine = FakeEngine(
        seconds_per_token=0.1, scheduler=SchedulerConfig(8, max_num_batched_tokens=24)
    )
    async with (
        running_worker(PREFILL_ROLE, engine) as prefill,
        open_channel(prefill.address) as channel,
    ):
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        call = stub.Prefill(make_request(prefill), timeout=10)
        await call.read()
        first = await call.read()
        assert isinstance(first, kv_transfer_pb2.KvChunk)
        message = KvMessage.of_chunk(first)
        assert (message.kind, message.blocks.first_block_index) == ("blocks", 0)
        assert prefill.sample("vllm:generation_tokens_total", model_name="fake") == 0
        call.cancel()
        await wait_until(prefill.all_blocks_free, "all blocks free")


@pytest.fixture
def every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have also the fake's tiny layers made known one by one."""
    monkeypatch.setattr(runner, "MIN_GROUP_BYTES", 1)


@pytest.mark.usefixtures("every_layer")
async def test_a_layer_leaves_before_the_next_is_computed() -> None:
    engine = FakeEngine()
    gate = threading.Event()
    engine.runner.before_layer = lambda layer: layer == 0 or gate.wait(10)
    async with (
        running_worker(PREFILL_ROLE, engine) as prefill,
        open_channel(prefill.address) as channel,
    ):
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        stream = aiter(stub.Prefill(make_request(prefill), timeout=10))
        header, *early = [KvMessage.of_chunk(await anext(stream)) for _ in range(4)]
        assert header.header.block_count == 5
        assert [run.blocks.first_block_index for run in early] == [0, 2, 4]
        assert [run.blocks.block_count for run in early] == [2, 2, 1]
        assert [run.blocks.token_count for run in early] == [32, 32, 6]
        assert {(run.blocks.first_layer, run.blocks.layer_count) for run in early} == {(0, 1)}
        assert [len(run.payload) for run in early] == [512, 512, 256]
        assert [token for run in early for token in slots(run)] == PROMPT
        assert prefill.sample("pagemesh:kv_blocks_sent_total", rpc="prefill") == 0
        gate.set()
        first, *late = await read_messages(stream)
        # The token is known with the last layer, and overtakes it.
        assert first.first_token.token_id == expected_tokens(PROMPT, 1)[0]
        assert [run.blocks.first_block_index for run in late] == [0, 2, 4]
        assert {(run.blocks.first_layer, run.blocks.layer_count) for run in late} == {(1, 1)}
        assert [token for run in late for token in slots(run)] == PROMPT
        assert prefill.sample("pagemesh:kv_blocks_sent_total", rpc="prefill") == 5
        await wait_until(prefill.all_blocks_free, "all blocks free")


@pytest.mark.usefixtures("every_layer")
async def test_a_step_that_fails_behind_early_layers_ends_the_stream_without_a_whole_block() -> (
    None
):
    engine = FakeEngine()

    def fail(layer: int) -> None:
        if layer == 1:
            raise RuntimeError("device lost")

    engine.runner.before_layer = fail
    async with (
        running_worker(PREFILL_ROLE, engine) as prefill,
        open_channel(prefill.address) as channel,
    ):
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        messages = []
        with pytest.raises(grpc.aio.AioRpcError, match="device lost") as caught:
            async for chunk in stub.Prefill(make_request(prefill), timeout=10):
                messages.append(KvMessage.of_chunk(chunk))
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        # What was waiting when the step failed may not have left any more.
        assert {message.kind for message in messages} <= {"header", "blocks", "alive"}
        for message in messages:
            if message.kind == "blocks":
                assert (message.blocks.first_layer, message.blocks.layer_count) == (0, 1)
        await wait_until(prefill.all_blocks_free, "all blocks free")


async def test_the_first_token_overtakes_blocks_that_wait(
    stub: prefill_pb2_grpc.PrefillAsyncStub, prefill: RunningWorker
) -> None:
    await _drain(stub.Prefill(make_request(prefill), timeout=10))
    # All but the last block is in the cache now, so that one step makes everything ready.
    messages = await read_messages(stub.Prefill(make_request(prefill), timeout=10))
    position = [message.kind for message in messages].index("first_token")
    assert position < len(messages) - 1


async def test_a_queued_request_says_that_it_is_alive_until_blocks_are_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servicer, "ALIVE_INTERVAL", 0.01)
    async with (
        running_worker(PREFILL_ROLE, FakeEngine(num_blocks=8)) as prefill,
        open_channel(prefill.address) as channel,
    ):
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        first = serve(prefill, make_request(prefill))
        await anext(first)
        await wait_until(lambda: not prefill.all_blocks_free(), "the first one's blocks")
        # Another prompt: it can share no block with the first.
        queued = aiter(stub.Prefill(make_request(prefill, prompt=PROMPT[::-1]), timeout=10))
        assert KvMessage.of_chunk(await anext(queued)).kind == "header"
        for _ in range(3):
            assert KvMessage.of_chunk(await anext(queued)).kind == "alive"
        await first.aclose()
        kinds = [message.kind for message in await read_messages(queued)]
        assert (kinds.count("first_token"), kinds.count("blocks")) == (1, 5)
        await wait_until(prefill.all_blocks_free, "all blocks free")


async def test_a_cancelled_stream_frees_its_blocks() -> None:
    engine = FakeEngine(
        seconds_per_token=0.05, scheduler=SchedulerConfig(8, max_num_batched_tokens=24)
    )
    async with (
        running_worker(PREFILL_ROLE, engine) as prefill,
        open_channel(prefill.address) as channel,
    ):
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        call = stub.Prefill(make_request(prefill), timeout=10)
        await call.read()
        await wait_until(lambda: not prefill.all_blocks_free(), "prefill runs")
        call.cancel()
        await wait_until(prefill.all_blocks_free, "all blocks free")


async def test_a_deadline_frees_the_blocks_and_ends_the_stream() -> None:
    engine = FakeEngine(
        seconds_per_token=0.2, scheduler=SchedulerConfig(8, max_num_batched_tokens=8)
    )
    async with (
        running_worker(PREFILL_ROLE, engine) as prefill,
        open_channel(prefill.address) as channel,
    ):
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _drain(stub.Prefill(make_request(prefill), timeout=0.3))
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await wait_until(prefill.all_blocks_free, "all blocks free")


async def test_blocks_are_held_until_the_last_one_was_taken(prefill: RunningWorker) -> None:
    stream = serve(prefill, make_request(prefill))
    taken = 0
    async for frame in stream:
        taken += KvMessage.of_frame(frame).blocks.token_count
        if taken < len(PROMPT):
            await prefill.step_has_passed()
            assert not prefill.all_blocks_free()
    assert taken == 70
    await wait_until(prefill.all_blocks_free, "all blocks free")


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        pytest.param(
            {"fingerprint": "other"}, "FAILED_PRECONDITION", "MODEL_MISMATCH", id="other model"
        ),
        pytest.param({"prompt": []}, "INVALID_ARGUMENT", "INVALID_REQUEST", id="empty prompt"),
        pytest.param({"held": 8}, "INVALID_ARGUMENT", "INVALID_REQUEST", id="half a block held"),
        pytest.param({"held": 80}, "INVALID_ARGUMENT", "INVALID_REQUEST", id="too much held"),
        pytest.param({"max_tokens": 0}, "INVALID_ARGUMENT", "INVALID_REQUEST", id="no tokens"),
        pytest.param(
            {"prompt": [5] * 600}, "INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED", id="too long"
        ),
    ],
)
async def test_a_wrong_request_is_refused_with_its_reason(
    prefill: RunningWorker,
    stub: prefill_pb2_grpc.PrefillAsyncStub,
    change: dict[str, object],
    code: str,
    reason: str,
) -> None:
    request = make_request(prefill, **change)  # type: ignore[arg-type]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _drain(stub.Prefill(request, timeout=10))
    assert caught.value.code().name == code
    assert from_rpc_error(caught.value).reason == reason


async def test_another_layout_is_refused(
    prefill: RunningWorker, stub: prefill_pb2_grpc.PrefillAsyncStub
) -> None:
    request = make_request(prefill)
    request.kv_layout.dtype = "bfloat16"
    with pytest.raises(grpc.aio.AioRpcError, match="bfloat16") as caught:
        await _drain(stub.Prefill(request, timeout=10))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("arithmetic", ["cpu-amx-bfloat16", "cpu-fma-float32"])
async def test_another_arithmetic_is_refused_with_both_names(
    prefill: RunningWorker, stub: prefill_pb2_grpc.PrefillAsyncStub, arithmetic: str
) -> None:
    request = make_request(prefill)
    request.arithmetic = arithmetic
    message = f"arithmetic is {arithmetic}, but that of .* is one that is not named"
    with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
        await _drain(stub.Prefill(request, timeout=10))
    assert from_rpc_error(caught.value).reason == "ARITHMETIC_MISMATCH"


async def _drain(
    call: grpc.aio.UnaryStreamCall[prefill_pb2.PrefillRequest, kv_transfer_pb2.KvChunk],
) -> None:
    async for _ in call:
        pass
