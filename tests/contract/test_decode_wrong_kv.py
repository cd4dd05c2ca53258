"""KV that is wrong, or of somebody else: it is counted and never used, and the tokens are the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.kv_transfer import frames
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.v1 import decode_pb2, types_pb2
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.support.kv_messages import KvMessage
from tests.support.saboteur import Chunks, sabotaged_role
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession, RunningWorker, running_worker

PROMPT = [10 + (7 * i) % 900 for i in range(150)]
NUM_TOKENS = 12
SMALL_CHUNKS = SchedulerConfig(8, max_num_batched_tokens=32)


@pytest.fixture(autouse=True)
def two_blocks_per_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have also the fake's tiny blocks travel in several messages."""
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 1024)


@pytest.fixture
async def prefill() -> AsyncIterator[RunningWorker]:
    async with running_worker(PREFILL_ROLE, FakeEngine(scheduler=SMALL_CHUNKS)) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of prefill free")


@pytest.fixture
async def decode() -> AsyncIterator[RunningWorker]:
    async with running_worker(DECODE_ROLE, FakeEngine()) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of decode free")


def failures(decode: RunningWorker, reason: str) -> float:
    return decode.sample("pagemesh:kv_import_failures_total", rpc="prefill", reason=reason)


def plan_of(worker_id: str, address: str, epoch: int = 1) -> decode_pb2.PrefillPlan:
    peer = types_pb2.PeerWorker(worker_id=worker_id, address=address, epoch=epoch)
    return decode_pb2.PrefillPlan(workers=[peer])


async def assert_same_tokens(decode: RunningWorker, plan: decode_pb2.PrefillPlan) -> None:
    async with RouterSession(decode.address) as session:
        received = await session.generate(1, PROMPT, max_tokens=NUM_TOKENS, plan=plan)
    assert received.error is None
    assert tuple(received.token_ids) == expected_tokens(PROMPT, NUM_TOKENS)


def flip_a_bit(message: KvMessage) -> bytes:
    frame = bytearray(message.frame())
    frame[-len(message.payload) // 2] ^= 1
    return bytes(frame)


def flip_a_bit_of_its_place(message: KvMessage) -> bytes:
    frame = bytearray(message.frame())
    frame[3] ^= 1
    return bytes(frame)


def cut_off_its_end(message: KvMessage) -> bytes:
    return message.frame()[:-4]


def truncate(message: KvMessage) -> bytes:
    message.payload = message.payload[:-4]
    return message.frame()


def name_other_blocks(message: KvMessage) -> bytes:
    message.blocks.block_hashes[0] = b"0123456789abcdef"
    return message.frame()


def aim_before_the_grant(message: KvMessage) -> bytes:
    message.blocks.first_block_index += 1000
    return message.frame()


def come_from_another_incarnation(message: KvMessage) -> bytes:
    message.content.stamp.epoch -= 1
    return message.frame()


def claim_another_type(message: KvMessage) -> bytes:
    message.content.stamp.kv_layout.dtype = "bfloat16"
    return message.frame()


def come_from_another_arithmetic(message: KvMessage) -> bytes:
    message.content.stamp.arithmetic = "cuda-sm90-triton3.6-float32"
    return message.frame()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(flip_a_bit, "KV_WRONG_CHECKSUM", id="flipped bit"),
        pytest.param(flip_a_bit_of_its_place, "KV_WRONG_CHECKSUM", id="flipped bit in front"),
        pytest.param(cut_off_its_end, "KV_MALFORMED", id="cut off"),
        pytest.param(truncate, "KV_WRONG_SIZE", id="truncated"),
        pytest.param(name_other_blocks, "KV_WRONG_HASH", id="other prompt"),
        pytest.param(aim_before_the_grant, "KV_OUT_OF_RANGE", id="out of range"),
        pytest.param(come_from_another_incarnation, "KV_WRONG_EPOCH", id="stale epoch"),
        pytest.param(claim_another_type, "KV_WRONG_LAYOUT", id="other type"),
        pytest.param(come_from_another_arithmetic, "KV_WRONG_ARITHMETIC", id="other arithmetic"),
    ],
)
async def test_kv_that_is_wrong_is_never_used(
    decode: RunningWorker, spoil: Callable[[KvMessage], bytes], reason: str
) -> None:
    async def spoil_the_second_run(chunks: Chunks) -> Chunks:
        number = 0
        async for frame in chunks:
            message = KvMessage.of_frame(frame)
            number += message.kind == "blocks"
            yield spoil(message) if message.kind == "blocks" and number == 2 else frame

    engine = FakeEngine(scheduler=SMALL_CHUNKS)
    async with running_worker(sabotaged_role(spoil_the_second_run), engine) as prefill:
        await assert_same_tokens(decode, prefill.plan)
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
    assert failures(decode, reason) == 1
    assert decode.sample("pagemesh:kv_rejected_total", reason=reason) == 1
    assert decode.sample("pagemesh:kv_tokens_received_total") == 32


async def test_a_first_token_with_a_flipped_bit_is_never_told(decode: RunningWorker) -> None:
    async def flip_a_bit_of_the_token(chunks: Chunks) -> Chunks:
        async for frame in chunks:
            message = KvMessage.of_frame(frame)
            if message.kind == "first_token":
                place = frame.index(message.first_token.SerializeToString())
                frame = frame[: place + 1] + bytes([frame[place + 1] ^ 1]) + frame[place + 2 :]
                assert KvMessage.of_frame(frame).first_token != message.first_token
            yield frame

    async with running_worker(sabotaged_role(flip_a_bit_of_the_token), FakeEngine()) as prefill:
        await assert_same_tokens(decode, prefill.plan)
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
    assert decode.sample("pagemesh:kv_rejected_total", reason="KV_WRONG_CHECKSUM") == 1


async def test_a_stream_of_another_worker_is_refused(
    prefill: RunningWorker, decode: RunningWorker
) -> None:
    await assert_same_tokens(decode, plan_of("someone-else", prefill.address))
    assert failures(decode, "KV_WRONG_SENDER") == 1


async def test_a_stream_of_another_incarnation_is_refused(
    prefill: RunningWorker, decode: RunningWorker
) -> None:
    earlier = prefill.worker.info.epoch - 1
    worker_id = prefill.worker.info.worker_id
    await assert_same_tokens(decode, plan_of(worker_id, prefill.address, earlier))
    assert failures(decode, "KV_WRONG_EPOCH") == 1
