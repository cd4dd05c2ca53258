"""KV out of another worker's cache: blocks are pulled by name, the rest is computed, nothing depends on it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest

from pagemesh.decode.service import DECODE_ROLE
from pagemesh.v1 import decode_pb2, kv_transfer_pb2, types_pb2
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.support.recording_engine import RecordingEngine
from tests.support.waiting import wait_until
from tests.support.workers import Received, RouterSession, RunningWorker, running_worker

PROMPT = [10 + (7 * i) % 900 for i in range(150)]
NUM_TOKENS = 12


@pytest.fixture
def decode_engine() -> RecordingEngine:
    return RecordingEngine()


@pytest.fixture
async def decode(decode_engine: RecordingEngine) -> AsyncIterator[RunningWorker]:
    async with running_worker(DECODE_ROLE, decode_engine) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of decode free")


@pytest.fixture
async def holder() -> AsyncIterator[RunningWorker]:
    """A decode worker that holds six blocks of PROMPT."""
    async with running_worker(DECODE_ROLE, FakeEngine()) as running:
        async with RouterSession(running.address) as session:
            await session.generate(1, PROMPT[:100], max_tokens=1)
        yield running
        await wait_until(running.all_blocks_free, "all blocks of the holder free")


def plan_of(source: kv_transfer_pb2.KvSource) -> decode_pb2.PrefillPlan:
    return decode_pb2.PrefillPlan(source=source)


async def run(
    decode: RunningWorker, plan: decode_pb2.PrefillPlan, prompt: list[int] = PROMPT
) -> Received:
    async with RouterSession(decode.address) as session:
        received = await session.generate(1, prompt, max_tokens=NUM_TOKENS, plan=plan)
    assert received.error is None
    assert tuple(received.token_ids) == expected_tokens(prompt, NUM_TOKENS)
    return received


def outcomes(decode: RunningWorker, outcome: str) -> float:
    return decode.sample("pagemesh:remote_prefills_total", outcome=outcome)


def pulls(worker: RunningWorker, outcome: str) -> float:
    return worker.sample("pagemesh:kv_pulls_total", path="pull", outcome=outcome)


async def test_blocks_that_another_worker_holds_are_pulled_and_the_rest_is_computed(
    decode: RunningWorker, decode_engine: RecordingEngine, holder: RunningWorker
) -> None:
    received = await run(decode, plan_of(holder.source(6)))
    assert decode_engine.imported == [96]
    assert received.kv is not None
    assert received.kv.received_token_count == 96
    assert received.kv.path == types_pb2.KV_PATH_PULL
    assert (outcomes(decode, "pulled"), pulls(decode, "complete")) == (1, 1)
    assert holder.sample("pagemesh:kv_blocks_sent_total", rpc="fetch") == 6
    assert decode.sample("pagemesh:kv_tokens_received_total") == 96


async def test_only_missing_blocks_are_pulled(
    decode: RunningWorker, decode_engine: RecordingEngine, holder: RunningWorker
) -> None:
    await run(decode, decode_pb2.PrefillPlan(source=holder.source(2)), PROMPT[:40])
    await run(decode, plan_of(holder.source(6)))
    assert decode_engine.imported == [32, 96]
    assert holder.sample("pagemesh:kv_blocks_sent_total", rpc="fetch") == 6


async def test_a_whole_prompt_may_be_pulled(
    decode: RunningWorker, decode_engine: RecordingEngine, holder: RunningWorker
) -> None:
    received = await run(decode, plan_of(holder.source(6)), PROMPT[:96])
    assert decode_engine.imported == [96]
    assert received.kv is not None
    assert received.kv.path == types_pb2.KV_PATH_PULL


async def test_a_resumed_request_pulls_what_is_held_of_its_prompt(
    decode: RunningWorker, decode_engine: RecordingEngine, holder: RunningWorker
) -> None:
    tokens = expected_tokens(PROMPT, NUM_TOKENS)
    async with RouterSession(decode.address) as session:
        received = await session.generate(
            1, PROMPT, resume=tokens[:4], max_tokens=NUM_TOKENS, plan=plan_of(holder.source(6))
        )
    assert tuple(received.token_ids) == tokens[4:]
    assert decode_engine.imported == [96]
    assert received.kv is not None
    assert received.kv.path == types_pb2.KV_PATH_PULL


@pytest.mark.parametrize(
    ("num_blocks", "imported", "outcome"),
    [(9, 96, "partial"), (200, 96, "partial"), (3, 48, "complete")],
)
async def test_a_holder_may_hold_more_or_less_than_was_thought(
    decode: RunningWorker,
    decode_engine: RecordingEngine,
    holder: RunningWorker,
    num_blocks: int,
    imported: int,
    outcome: str,
) -> None:
    await run(decode, plan_of(holder.source(num_blocks)))
    assert decode_engine.imported == [imported]
    assert (outcomes(decode, "pulled"), pulls(decode, outcome)) == (1, 1)


async def test_a_holder_that_has_nothing_any_more_costs_only_time(
    decode: RunningWorker, decode_engine: RecordingEngine
) -> None:
    async with running_worker(DECODE_ROLE, FakeEngine()) as empty:
        received = await run(decode, plan_of(empty.source(6)))
    assert decode_engine.imported == [0]
    assert received.kv is not None
    assert received.kv.path == types_pb2.KV_PATH_LOCAL
    assert (outcomes(decode, "fallback"), pulls(decode, "partial")) == (1, 1)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("gone", "UNAVAILABLE"),
        ("restarted", "KV_WRONG_EPOCH"),
        ("other model", "MODEL_MISMATCH"),
    ],
)
async def test_a_holder_that_fails_costs_only_time(
    decode: RunningWorker, holder: RunningWorker, how: str, reason: str
) -> None:
    source = holder.source(6)
    if how == "gone":
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            source.worker.address = f"127.0.0.1:{unused.getsockname()[1]}"
    elif how == "restarted":
        source.worker.epoch -= 1
    else:
        holder.worker.info.model_fingerprint = "other"
    received = await run(decode, plan_of(source))
    assert received.kv is not None
    assert received.kv.path == types_pb2.KV_PATH_LOCAL
    assert (outcomes(decode, "fallback"), pulls(decode, "failed")) == (1, 1)
    failures = "pagemesh:kv_import_failures_total"
    assert decode.sample(failures, rpc="fetch", reason=reason) == 1


async def test_nobody_pulls_from_itself_or_what_it_holds(
    decode: RunningWorker, holder: RunningWorker
) -> None:
    await run(decode, plan_of(decode.source(6)))
    await run(decode, plan_of(holder.source(6)), [*PROMPT, *PROMPT])
    assert outcomes(decode, "local") == 2
    assert holder.sample("pagemesh:kv_blocks_sent_total", rpc="fetch") == 0
