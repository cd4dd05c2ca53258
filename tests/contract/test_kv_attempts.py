"""When a worker that should deliver KV does not: the next one is asked, and only for the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from pagemesh.config import SchedulerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.errors import UnavailableError
from pagemesh.kv_transfer import frames, importer, streams
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.v1 import decode_pb2, types_pb2
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.support.recording_engine import RecordingEngine
from tests.support.saboteur import Chunks, kind_of, sabotaged_role
from tests.support.waiting import wait_until
from tests.support.workers import Received, RouterSession, RunningWorker, running_worker

PROMPT = [10 + (7 * i) % 900 for i in range(150)]
NUM_TOKENS = 12
SMALL_CHUNKS = SchedulerConfig(8, max_num_batched_tokens=32)


@pytest.fixture(autouse=True)
def two_blocks_per_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 1024)


@pytest.fixture
def decode_engine() -> RecordingEngine:
    return RecordingEngine()


@pytest.fixture
async def decode(decode_engine: RecordingEngine) -> AsyncIterator[RunningWorker]:
    async with running_worker(DECODE_ROLE, decode_engine) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of decode free")
        assert len(decode_engine.import_ids) == len(set(decode_engine.import_ids))


@pytest.fixture
async def prefill() -> AsyncIterator[RunningWorker]:
    async with running_worker(PREFILL_ROLE, FakeEngine(scheduler=SMALL_CHUNKS)) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of prefill free")


def broken(kind: str, number: int = 1) -> Callable[[Chunks], Chunks]:
    """Sends only the header and messages of one kind, and breaks behind so many of them."""

    async def sabotage(chunks: Chunks) -> Chunks:
        seen = 0
        async for chunk in chunks:
            if kind_of(chunk) in ("header", kind):
                yield chunk
            seen += kind_of(chunk) == kind
            if seen == number:
                raise UnavailableError("told to break")

    return sabotage


async def mute(chunks: Chunks) -> Chunks:
    """Stalls behind the header."""
    async for chunk in chunks:
        yield chunk
        await asyncio.Event().wait()


def plan_of(*workers: RunningWorker) -> decode_pb2.PrefillPlan:
    return decode_pb2.PrefillPlan(workers=[worker.peer for worker in workers])


async def run(decode: RunningWorker, plan: decode_pb2.PrefillPlan) -> Received:
    async with RouterSession(decode.address) as session:
        received = await session.generate(1, PROMPT, max_tokens=NUM_TOKENS, plan=plan)
    assert received.error is None
    assert tuple(received.token_ids) == expected_tokens(PROMPT, NUM_TOKENS)
    return received


def failures(decode: RunningWorker, reason: str) -> float:
    return decode.sample("pagemesh:kv_import_failures_total", rpc="prefill", reason=reason)


def outcomes(decode: RunningWorker, outcome: str) -> float:
    return decode.sample("pagemesh:remote_prefills_total", outcome=outcome)


async def test_the_next_worker_is_asked_only_for_what_the_first_did_not_deliver(
    decode: RunningWorker, decode_engine: RecordingEngine, prefill: RunningWorker
) -> None:
    role = sabotaged_role(broken("blocks", 2))
    async with running_worker(role, FakeEngine(scheduler=SMALL_CHUNKS)) as first:
        with capture_logs() as logs:
            received = await run(decode, plan_of(first, prefill))
        await wait_until(first.all_blocks_free, "all blocks of the first one free")
    assert decode_engine.imported == [150]
    assert prefill.sample("pagemesh:kv_blocks_sent_total", rpc="prefill") == 6
    assert decode.sample("pagemesh:kv_tokens_received_total") == 150
    assert (outcomes(decode, "complete"), failures(decode, "UNAVAILABLE")) == (1, 1)
    assert received.kv is not None
    assert received.kv.path == types_pb2.KV_PATH_REMOTE
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [(line["peer"], line["num_verified_tokens"]) for line in warnings] == [
        (first.worker.info.worker_id, 64)
    ]


async def test_a_first_token_that_two_workers_sampled_is_reported_once(
    decode: RunningWorker, decode_engine: RecordingEngine, prefill: RunningWorker
) -> None:
    role = sabotaged_role(broken("first_token"))
    async with running_worker(role, FakeEngine()) as first:
        received = await run(decode, plan_of(first, prefill))
    assert len(decode_engine.first_logprobs) == 1
    assert decode_engine.imported == [150]
    assert outcomes(decode, "complete") == 1
    assert received.kv is not None
    assert received.kv.path == types_pb2.KV_PATH_REMOTE


async def test_what_the_last_worker_did_not_deliver_is_computed_here(
    decode: RunningWorker, decode_engine: RecordingEngine
) -> None:
    roles = [sabotaged_role(broken("blocks", 1)), sabotaged_role(broken("blocks", 2))]
    async with (
        running_worker(roles[0], FakeEngine(scheduler=SMALL_CHUNKS)) as first,
        running_worker(roles[1], FakeEngine(scheduler=SMALL_CHUNKS)) as second,
    ):
        received = await run(decode, plan_of(first, second))
    # Two blocks of the first one, four of the second.
    assert decode_engine.imported == [96]
    assert (outcomes(decode, "fallback"), failures(decode, "UNAVAILABLE")) == (1, 2)
    assert received.kv is not None
    assert received.kv.received_token_count == 96
    assert received.kv.path == types_pb2.KV_PATH_LOCAL


@pytest.mark.parametrize(
    ("sabotage", "imported", "num_pulls", "outcome", "path"),
    [
        pytest.param(broken("header"), 96, 1, "pulled", types_pb2.KV_PATH_PULL, id="nothing"),
        pytest.param(broken("blocks"), 96, 1, "pulled", types_pb2.KV_PATH_PULL, id="less"),
        pytest.param(broken("blocks", 4), 128, 0, "fallback", types_pb2.KV_PATH_LOCAL, id="more"),
    ],
)
async def test_behind_the_last_worker_the_source_is_asked_for_what_it_holds_beyond_that(
    decode: RunningWorker,
    decode_engine: RecordingEngine,
    sabotage: Callable[[Chunks], Chunks],
    imported: int,
    num_pulls: int,
    outcome: str,
    path: types_pb2.KvPath.ValueType,
) -> None:
    async with (
        running_worker(sabotaged_role(sabotage), FakeEngine(scheduler=SMALL_CHUNKS)) as first,
        running_worker(DECODE_ROLE, FakeEngine()) as holder,
    ):
        async with RouterSession(holder.address) as session:
            await session.generate(1, PROMPT[:100], max_tokens=1)
        plan = plan_of(first)
        plan.source.CopyFrom(holder.source(6))
        received = await run(decode, plan)
    assert decode_engine.imported == [imported]
    # No block came twice.
    assert decode.sample("pagemesh:kv_bytes_received_total") == imported // 16 * 512
    assert decode.sample("pagemesh:kv_pulls_total", path="pull", outcome="complete") == num_pulls
    assert outcomes(decode, outcome) == 1
    assert received.kv is not None
    assert received.kv.path == path


async def test_a_first_token_alone_is_sampled_here(
    decode: RunningWorker, decode_engine: RecordingEngine, prefill: RunningWorker
) -> None:
    async def without_the_token(chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            if kind_of(chunk) != "first_token":
                yield chunk

    async with running_worker(sabotaged_role(without_the_token), FakeEngine()) as first:
        received = await run(decode, plan_of(first, prefill))
    assert decode_engine.imported == [150]
    assert (outcomes(decode, "fallback"), failures(decode, "KV_INCOMPLETE")) == (1, 1)
    assert received.kv is not None
    assert received.kv.path == types_pb2.KV_PATH_REMOTE
    assert prefill.sample("pagemesh:kv_blocks_sent_total", rpc="prefill") == 0


async def test_nobody_is_asked_for_less_than_a_block(
    decode: RunningWorker,
    decode_engine: RecordingEngine,
    prefill: RunningWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 512)
    async with running_worker(sabotaged_role(broken("blocks", 9)), FakeEngine()) as first:
        await run(decode, plan_of(first, prefill))
    assert decode_engine.imported == [144]
    assert outcomes(decode, "fallback") == 1
    assert prefill.sample("pagemesh:kv_blocks_sent_total", rpc="prefill") == 0


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("gone", "UNAVAILABLE"),
        ("mute", "KV_STALLED"),
        ("restarted", "KV_WRONG_EPOCH"),
        ("other model", "MODEL_MISMATCH"),
    ],
)
async def test_whatever_is_wrong_with_a_worker_the_next_one_serves(
    decode: RunningWorker,
    prefill: RunningWorker,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    reason: str,
) -> None:
    monkeypatch.setattr(streams, "STALL_TIMEOUT", 0.6 if how == "mute" else 10.0)
    role = sabotaged_role(mute) if how == "mute" else PREFILL_ROLE
    async with running_worker(role, FakeEngine()) as first:
        plan = plan_of(first, prefill)
        if how == "gone":
            await first.server.close()
        elif how == "restarted":
            plan.workers[0].epoch -= 1
        elif how == "other model":
            first.worker.info.model_fingerprint = "other"
        received = await run(decode, plan)
        await wait_until(first.all_blocks_free, "all blocks of the first one free")
    assert (outcomes(decode, "complete"), failures(decode, reason)) == (1, 1)
    assert received.kv is not None
    assert received.kv.received_token_count == 150


async def test_a_stream_that_waits_to_be_read_is_not_taken_for_a_silent_one(
    prefill: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 1)
    monkeypatch.setattr(streams, "STALL_TIMEOUT", 1.0)
    asked = asyncio.Event()

    async def silent(chunks: Chunks) -> Chunks:
        asked.set()
        async for chunk in mute(chunks):
            yield chunk

    async with (
        running_worker(sabotaged_role(silent), FakeEngine()) as first,
        running_worker(DECODE_ROLE, FakeEngine()) as decode,
        RouterSession(decode.address) as session,
    ):
        await session.submit(1, PROMPT, plan=plan_of(first))
        await asyncio.wait_for(asked.wait(), 5)
        await session.submit(2, PROMPT[::-1], plan=plan_of(prefill))
        assert tuple((await session.over(2)).token_ids) == expected_tokens(PROMPT[::-1], 8)
        assert tuple((await session.over(1)).token_ids) == expected_tokens(PROMPT, 8)
        assert failures(decode, "KV_STALLED") == 1
        assert outcomes(decode, "complete") == 1


async def test_a_receiver_that_copies_slowly_does_not_take_that_for_the_senders_silence(
    prefill: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STALL_TIMEOUT", 0.3)
    engine = FakeEngine()
    write = engine.kv.write

    def write_slowly(*blocks: Any) -> None:
        threading.Event().wait(0.6)
        write(*blocks)

    monkeypatch.setattr(engine.kv, "write", write_slowly)
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 1 << 20)
    async with running_worker(DECODE_ROLE, engine) as decode:
        await run(decode, plan_of(prefill))
        assert failures(decode, "KV_STALLED") == 0
        assert outcomes(decode, "complete") == 1


async def test_other_workers_cannot_make_up_reasons_without_end(
    decode: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "MAX_REASONS", 3)
    numbers = iter(range(6))

    async def sabotage(chunks: Chunks) -> Chunks:
        raise UnavailableError("not today", reason=f"REASON_{next(numbers)}")
        yield b""

    async with running_worker(sabotaged_role(sabotage), FakeEngine()) as first:
        await run(decode, plan_of(*[first] * 6))
    assert [failures(decode, f"REASON_{number}") for number in range(6)] == [1, 1, 1, 0, 0, 0]
    assert failures(decode, "OTHER") == 3


@pytest.mark.parametrize("how", ["cancel", "break"])
async def test_a_request_that_ends_while_the_second_worker_computes_frees_all_three(
    decode: RunningWorker, how: str
) -> None:
    slow = FakeEngine(seconds_per_token=0.05, scheduler=SMALL_CHUNKS)
    async with (
        running_worker(sabotaged_role(broken("blocks", 1)), FakeEngine()) as first,
        running_worker(PREFILL_ROLE, slow) as second,
        RouterSession(decode.address) as session,
    ):
        await session.submit(1, PROMPT, max_tokens=300, plan=plan_of(first, second))
        await wait_until(lambda: not second.all_blocks_free(), "the second one runs")
        assert not decode.all_blocks_free()
        if how == "cancel":
            await session.cancel(1)
        else:
            session.call.cancel()
        for worker in (first, second, decode):
            await wait_until(worker.all_blocks_free, "all blocks free")
    assert outcomes(decode, "cancelled") == 1


async def test_a_request_that_is_over_with_its_first_token_was_not_cancelled(
    decode: RunningWorker,
) -> None:
    async def token_alone(chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            if kind_of(chunk) in ("header", "first_token"):
                yield chunk
        await asyncio.Event().wait()

    async with (
        running_worker(sabotaged_role(token_alone), FakeEngine()) as prefill,
        RouterSession(decode.address) as session,
    ):
        received = await session.generate(1, PROMPT, max_tokens=1, plan=plan_of(prefill))
        # Nobody waits for the KV.
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
        await wait_until(decode.all_blocks_free, "all blocks of decode free")
    assert tuple(received.token_ids) == expected_tokens(PROMPT, 1)
    assert (outcomes(decode, "finished"), outcomes(decode, "cancelled")) == (1, 0)
    assert received.kv is not None
    assert received.kv.path == types_pb2.KV_PATH_REMOTE
    assert received.kv.received_token_count == 0
