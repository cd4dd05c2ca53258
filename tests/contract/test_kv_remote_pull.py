"""A prefill worker pulls what another worker holds before it computes; nothing depends on that worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.kv_transfer import frames, importer, streams
from pagemesh.prefill import servicer
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.v1 import decode_pb2, kv_transfer_pb2, types_pb2
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.support.computed_tokens import ComputedTokens
from tests.support.saboteur import Chunks, kind_of, sabotaged_holder
from tests.support.waiting import wait_until
from tests.support.workers import Received, RouterSession, RunningWorker, running_worker

FIRST_TURN = [10 + (7 * i) % 900 for i in range(100)]
ANSWER = expected_tokens(FIRST_TURN, 40)
SECOND_TURN = [*FIRST_TURN, *ANSWER, *(20 + (3 * i) % 700 for i in range(30))]
NUM_HELD_BLOCKS = 8
"""Full blocks of the first turn: of 140 tokens, the KV of the last one was never computed."""


@pytest.fixture(autouse=True)
def two_blocks_per_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 1024)


@pytest.fixture
async def holder() -> AsyncIterator[RunningWorker]:
    """The decode worker of the first turn."""
    async with running_worker(DECODE_ROLE, FakeEngine()) as running:
        await first_turn(running)
        yield running
        await wait_until(running.all_blocks_free, "all blocks of the holder free")


async def first_turn(worker: RunningWorker) -> None:
    async with RouterSession(worker.address) as session:
        received = await session.generate(1, FIRST_TURN, max_tokens=40)
    assert tuple(received.token_ids) == ANSWER


@pytest.fixture
def prefill_engine() -> FakeEngine:
    return FakeEngine(scheduler=SchedulerConfig(8, max_num_batched_tokens=32))


@pytest.fixture
def computed(prefill_engine: FakeEngine) -> ComputedTokens:
    return ComputedTokens(prefill_engine)


@pytest.fixture
async def prefill(
    prefill_engine: FakeEngine, computed: ComputedTokens
) -> AsyncIterator[RunningWorker]:
    async with running_worker(PREFILL_ROLE, prefill_engine) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of prefill free")


@pytest.fixture
async def decode() -> AsyncIterator[RunningWorker]:
    async with running_worker(DECODE_ROLE, FakeEngine()) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of decode free")


def plan_of(prefill: RunningWorker, source: kv_transfer_pb2.KvSource) -> decode_pb2.PrefillPlan:
    return decode_pb2.PrefillPlan(workers=[prefill.peer], source=source)


async def second_turn(decode: RunningWorker, plan: decode_pb2.PrefillPlan) -> Received:
    async with RouterSession(decode.address) as session:
        received = await session.generate(2, SECOND_TURN, plan=plan)
    assert received.error is None
    assert tuple(received.token_ids) == expected_tokens(SECOND_TURN, 8)
    assert decode.sample("pagemesh:remote_prefills_total", outcome="complete") == 1
    return received


def path_of(received: Received) -> types_pb2.KvPath.ValueType:
    assert received.kv is not None
    return received.kv.path


def pulls(worker: RunningWorker, outcome: str) -> float:
    return worker.sample("pagemesh:kv_pulls_total", path="remote_pull", outcome=outcome)


async def test_what_a_decode_worker_generated_serves_the_next_turns_prefill(
    holder: RunningWorker, prefill: RunningWorker, decode: RunningWorker, computed: ComputedTokens
) -> None:
    received = await second_turn(decode, plan_of(prefill, holder.source(NUM_HELD_BLOCKS)))
    assert path_of(received) == types_pb2.KV_PATH_REMOTE_PULL
    assert computed.count == len(SECOND_TURN) - 8 * 16 == 42
    assert pulls(prefill, "complete") == 1
    assert prefill.sample("pagemesh:kv_tokens_received_total") == 128
    assert holder.sample("pagemesh:kv_blocks_sent_total", rpc="fetch") == 8
    # The decode worker gets everything in one place.
    assert prefill.sample("pagemesh:kv_blocks_sent_total", rpc="prefill") == 11
    assert decode.sample("pagemesh:kv_tokens_received_total") == 170


async def test_the_decode_worker_itself_may_be_the_source(
    holder: RunningWorker, prefill: RunningWorker, computed: ComputedTokens
) -> None:
    received = await second_turn(holder, plan_of(prefill, holder.source(NUM_HELD_BLOCKS)))
    assert path_of(received) == types_pb2.KV_PATH_REMOTE_PULL
    assert computed.count == 42
    assert prefill.sample("pagemesh:kv_blocks_sent_total", rpc="prefill") == 3


async def test_a_prefill_worker_pulls_only_what_it_lacks(
    holder: RunningWorker, prefill: RunningWorker, decode: RunningWorker, computed: ComputedTokens
) -> None:
    async with RouterSession(decode.address) as session:
        await session.generate(1, FIRST_TURN[:70], plan=prefill.plan)
    await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
    computed.count = 0
    async with RouterSession(decode.address) as session:
        plan = plan_of(prefill, holder.source(NUM_HELD_BLOCKS))
        received = await session.generate(2, SECOND_TURN, plan=plan)
    assert tuple(received.token_ids) == expected_tokens(SECOND_TURN, 8)
    assert holder.sample("pagemesh:kv_blocks_sent_total", rpc="fetch") == 4
    assert computed.count == 42


async def test_a_source_that_holds_less_leaves_the_rest_to_be_computed(
    holder: RunningWorker, prefill: RunningWorker, decode: RunningWorker, computed: ComputedTokens
) -> None:
    received = await second_turn(decode, plan_of(prefill, holder.source(10)))
    assert path_of(received) == types_pb2.KV_PATH_REMOTE_PULL
    assert (computed.count, pulls(prefill, "partial")) == (42, 1)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("gone", "UNAVAILABLE"),
        ("restarted", "KV_WRONG_EPOCH"),
        ("other model", "MODEL_MISMATCH"),
    ],
)
async def test_a_source_that_fails_costs_only_time(
    holder: RunningWorker,
    prefill: RunningWorker,
    decode: RunningWorker,
    computed: ComputedTokens,
    how: str,
    reason: str,
) -> None:
    source = holder.source(NUM_HELD_BLOCKS)
    if how == "gone":
        source.worker.address = "127.0.0.1:1"
    elif how == "restarted":
        source.worker.epoch -= 1
    else:
        holder.worker.info.model_fingerprint = "other"
    received = await second_turn(decode, plan_of(prefill, source))
    assert path_of(received) == types_pb2.KV_PATH_REMOTE
    assert (computed.count, pulls(prefill, "failed")) == (170, 1)
    failures = "pagemesh:kv_import_failures_total"
    assert prefill.sample(failures, rpc="fetch", reason=reason) == 1


@pytest.mark.parametrize(
    ("what_ends_it", "reason"),
    [("stall", "KV_STALLED"), ("its share of the time", "DEADLINE_EXCEEDED")],
)
async def test_a_source_that_stalls_keeps_what_it_sent(
    prefill: RunningWorker,
    decode: RunningWorker,
    computed: ComputedTokens,
    monkeypatch: pytest.MonkeyPatch,
    what_ends_it: str,
    reason: str,
) -> None:
    async def stall_behind_two_blocks(chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            yield chunk
            if kind_of(chunk) == "blocks":
                await asyncio.Event().wait()

    async with running_worker(sabotaged_holder(stall_behind_two_blocks), FakeEngine()) as holder:
        await first_turn(holder)
        if what_ends_it == "stall":
            monkeypatch.setattr(streams, "STALL_TIMEOUT", 0.6)
        else:
            # Of 20 s.
            monkeypatch.setattr(importer, "PULL_SHARE", 0.03)
        # The decode worker, which waits for the one who waits, hears that it lives.
        monkeypatch.setattr(servicer, "ALIVE_INTERVAL", 0.02)
        received = await second_turn(decode, plan_of(prefill, holder.source(NUM_HELD_BLOCKS)))
        await wait_until(holder.all_blocks_free, "all blocks of the holder free")
    assert path_of(received) == types_pb2.KV_PATH_REMOTE_PULL
    assert computed.count == 170 - 32
    failures = "pagemesh:kv_import_failures_total"
    assert prefill.sample(failures, rpc="fetch", reason=reason) == 1


@pytest.mark.parametrize("how", ["cancel", "break", "deadline", "prefill stops"])
async def test_a_request_that_ends_while_the_prefill_worker_pulls_frees_all_three(
    decode: RunningWorker, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "PULL_SHARE", 2.0)
    pulling = asyncio.Event()

    async def stall_behind_two_blocks(chunks: Chunks) -> Chunks:
        # The decode worker, which pulls when the prefill worker is gone, is served.
        is_first = not pulling.is_set()
        async for chunk in chunks:
            yield chunk
            if is_first and kind_of(chunk) == "blocks":
                pulling.set()
                await asyncio.Event().wait()

    async with (
        running_worker(sabotaged_holder(stall_behind_two_blocks), FakeEngine()) as holder,
        running_worker(PREFILL_ROLE, FakeEngine(), grace_period=0.0) as prefill,
        RouterSession(decode.address) as session,
    ):
        await first_turn(holder)
        plan = plan_of(prefill, holder.source(NUM_HELD_BLOCKS))
        limit = 1.0 if how == "deadline" else 20.0
        await session.submit(2, SECOND_TURN, max_tokens=300, plan=plan, time_limit=limit)
        await asyncio.wait_for(pulling.wait(), 5.0)
        await wait_until(lambda: not holder.all_blocks_free(), "blocks of the holder are pinned")
        await wait_until(lambda: not prefill.all_blocks_free(), "blocks of prefill are granted")
        if how == "cancel":
            await session.cancel(2)
        elif how == "break":
            session.call.cancel()
        elif how == "prefill stops":
            await prefill.server.close()
        for worker in (holder, prefill):
            await wait_until(worker.all_blocks_free, "all blocks free")
        if how == "prefill stops":
            await session.has_tokens(2)
            await session.cancel(2)
        await wait_until(decode.all_blocks_free, "all blocks of decode free")
