"""Workers with their KV on devices of one host: a device copies it out of the other's, which CPUs play here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from pagemesh.decode.service import DECODE_ROLE
from pagemesh.kv_transfer import transports
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.rpc.channels import host_identity, open_channel
from pagemesh.v1 import decode_pb2, kv_transfer_pb2, prefill_pb2, prefill_pb2_grpc, types_pb2
from tests.fakes.engine import FakeEngine
from tests.support.host_device import Device
from tests.support.host_sharing import HostSharing
from tests.support.kv_messages import KvMessage, read_messages
from tests.support.saboteur import sabotaged_role
from tests.support.waiting import wait_until
from tests.support.witness import Witness
from tests.support.workers import Received, RouterSession, RunningWorker, running_worker

PROMPT = [10 + (7 * i) % 900 for i in range(150)]
NUM_TOKENS = 12
NUM_BLOCKS = 10
SAMPLING = types_pb2.SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
Answer = list[tuple[int, float]]
"""Tokens and their log probabilities: another KV may lead to the same tokens."""


@pytest.fixture(autouse=True)
def several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "DEVICE_PART_BYTES", 1 << 16)


@pytest.fixture
def receiver(demo_model: Path) -> Device:
    return Device(demo_model)


@pytest.fixture
async def decode(receiver: Device) -> AsyncIterator[RunningWorker]:
    async with running_worker(DECODE_ROLE, receiver.engine) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of decode free")
    assert receiver.sharing.opened == []


@pytest.fixture(scope="module")
def expected(demo_model: Path) -> Iterator[Answer]:
    """The answer of one engine alone."""

    async def answer() -> Answer:
        async with (
            running_worker(DECODE_ROLE, Device(demo_model).engine) as alone,
            RouterSession(alone.address) as session,
        ):
            received = await session.generate(1, PROMPT, sampling=SAMPLING)
        return answer_of(received)

    yield asyncio.run(answer())


def answer_of(received: Received) -> Answer:
    return [(each.token_id, each.logprob) for each in received.logprobs]


async def generate(decode: RunningWorker, plan: decode_pb2.PrefillPlan) -> Answer:
    async with RouterSession(decode.address) as session:
        received = await session.generate(1, PROMPT, sampling=SAMPLING, plan=plan)
    assert received.error is None
    answer = answer_of(received)
    assert [token_id for token_id, _ in answer] == received.token_ids
    assert len(answer) == NUM_TOKENS
    return answer


def outcomes(decode: RunningWorker, outcome: str) -> float:
    return decode.sample("pagemesh:remote_prefills_total", outcome=outcome)


async def test_no_kv_travels_between_devices_of_one_host(
    decode: RunningWorker, receiver: Device, demo_model: Path, expected: Answer
) -> None:
    witness, sender = Witness(), Device(demo_model)
    async with running_worker(sabotaged_role(witness), sender.engine) as prefill:
        assert await generate(decode, prefill.plan) == expected
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
        async with RouterSession(decode.address) as session:
            await session.generate(1, PROMPT[::-1], sampling=SAMPLING, plan=prefill.plan)
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
    assert [witness.payloads(0), witness.payloads(1)] == [0, 0]
    assert len(witness.streams[0]) > 3
    assert receiver.sharing.num_opened == 1
    assert outcomes(decode, "complete") == 2
    assert decode.sample("pagemesh:kv_tokens_received_total") == 300
    num_bytes = 2 * NUM_BLOCKS * receiver.engine.info.layout.num_bytes
    assert decode.sample("pagemesh:kv_bytes_received_total") == num_bytes


def wrong_sum(message: KvMessage) -> None:
    if message.kind == "blocks":
        message.blocks.memory_blocks.checksum ^= 1


async def test_a_wrong_checksum_is_refused(
    decode: RunningWorker, demo_model: Path, expected: Answer
) -> None:
    sender = Device(demo_model)
    async with running_worker(sabotaged_role(Witness(wrong_sum)), sender.engine) as prefill:
        assert await generate(decode, prefill.plan) == expected
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
    assert decode.sample("pagemesh:kv_rejected_total", reason="KV_WRONG_CHECKSUM") == 1
    assert decode.sample("pagemesh:kv_tokens_received_total") == 0
    assert outcomes(decode, "fallback") == 1


async def test_blocks_that_are_somebody_elses_by_then_are_never_used(
    decode: RunningWorker, demo_model: Path, expected: Answer
) -> None:
    sender = Device(demo_model)
    layout = sender.engine.info.layout

    def give_away(message: KvMessage) -> None:
        if message.kind == "blocks":
            last = message.blocks.memory_blocks.block_ids[-1]
            sender.kv.write(
                [last], 0, layout.num_layers, bytes(range(256)) * (layout.num_bytes // 256)
            )

    async with running_worker(sabotaged_role(Witness(give_away)), sender.engine) as prefill:
        assert await generate(decode, prefill.plan) == expected
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
    assert decode.sample("pagemesh:kv_rejected_total", reason="KV_WRONG_CHECKSUM") == 1
    assert decode.sample("pagemesh:kv_tokens_received_total") == 0


def behind_the_memory(message: KvMessage) -> None:
    if message.kind == "header" and message.header.HasField("device_memory"):
        message.header.device_memory.block_count += 1


def another_process(message: KvMessage) -> None:
    if message.kind == "header" and message.header.HasField("device_memory"):
        message.header.device_memory.process_id = 2**22 + 1


@pytest.mark.parametrize(
    ("change", "reaches"),
    [(None, False), (another_process, True), (behind_the_memory, True)],
    ids=["no peer access", "another process", "less memory"],
)
async def test_devices_out_of_reach_are_tried_once(
    demo_model: Path,
    expected: Answer,
    change: Callable[[KvMessage], None] | None,
    reaches: bool,
) -> None:
    witness, sender = Witness(change), Device(demo_model)
    receiver = Device(demo_model, HostSharing(reaches=reaches))
    num_bytes = NUM_BLOCKS * receiver.engine.info.layout.num_bytes
    async with (
        running_worker(DECODE_ROLE, receiver.engine) as decode,
        running_worker(sabotaged_role(witness), sender.engine) as prefill,
    ):
        assert await generate(decode, prefill.plan) == expected
        assert [witness.payloads(0), witness.payloads(1)] == [0, num_bytes]
        async with RouterSession(decode.address) as session:
            await session.generate(1, PROMPT[::-1], sampling=SAMPLING, plan=prefill.plan)
        assert len(witness.streams) == 3
        assert witness.payloads(2) == num_bytes
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
        await wait_until(decode.all_blocks_free, "all blocks of decode free")
        assert outcomes(decode, "complete") == 2


def raw_request(prefill: RunningWorker, *, on_device: bool) -> prefill_pb2.PrefillRequest:
    return prefill_pb2.PrefillRequest(
        prompt_token_ids=PROMPT,
        sampling=types_pb2.SamplingParams(max_tokens=4),
        model_fingerprint=prefill.worker.info.model_fingerprint,
        kv_layout=prefill.worker.info.kv_layout,
        arithmetic=prefill.worker.info.arithmetic,
        caller_host=host_identity(on_device=on_device),
    )


@pytest.mark.parametrize(
    ("exports", "on_device"), [(True, False), (False, True)], ids=["to a CPU", "not shareable"]
)
async def test_kv_that_the_caller_cannot_read_comes_in_messages(
    demo_model: Path, exports: bool, on_device: bool
) -> None:
    sender = Device(demo_model, HostSharing(exports=exports))
    async with (
        running_worker(PREFILL_ROLE, sender.engine) as prefill,
        open_channel(prefill.address) as channel,
    ):
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        request = raw_request(prefill, on_device=on_device)
        messages = await read_messages(stub.Prefill(request, timeout=10))
        await wait_until(prefill.all_blocks_free, "all blocks free")
    assert messages[0].header.WhichOneof("place") is None
    num_bytes = NUM_BLOCKS * sender.engine.info.layout.num_bytes
    assert sum(len(message.payload) for message in messages) == num_bytes


async def test_the_sender_keeps_its_blocks_until_the_receiver_ends_the_stream(
    demo_model: Path,
) -> None:
    sender = Device(demo_model)
    async with (
        running_worker(PREFILL_ROLE, sender.engine) as prefill,
        open_channel(prefill.address) as channel,
    ):
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        call = stub.Prefill(raw_request(prefill, on_device=True), timeout=20.0)
        kinds: list[str | None] = []
        num_complete = 0
        while num_complete < NUM_BLOCKS or "first_token" not in kinds:
            chunk = await call.read()
            assert isinstance(chunk, kv_transfer_pb2.KvChunk)
            message = KvMessage.of_chunk(chunk)
            kinds.append(message.kind)
            blocks = message.blocks
            if blocks.first_layer + blocks.layer_count == sender.engine.info.layout.num_layers:
                num_complete += blocks.block_count
        for _ in range(3):
            await prefill.step_has_passed()
        load, info = prefill.worker.engine.load(), prefill.worker.engine.info
        assert load.num_free_blocks == info.num_blocks - NUM_BLOCKS
        call.cancel()
        await wait_until(prefill.all_blocks_free, "all blocks free")


async def test_memory_of_the_host_is_not_offered_to_a_device(decode: RunningWorker) -> None:
    identity = decode.worker.transports.identity_for(types_pb2.PeerWorker(worker_id="x", epoch=1))
    assert identity == host_identity(on_device=True)
    async with running_worker(PREFILL_ROLE, FakeEngine(shared=True)) as on_host:
        assert identity is not None
        transport = on_host.worker.transports.sending_to(identity)
        assert not transport.needs_blocks_until_cancelled
