"""Disaggregated requests: whatever happens to the prefill worker, the tokens are those of local computing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.core.kv import KvGrant
from pagemesh.core.request import EngineRequest
from pagemesh.decode.remote_prefill import RemotePrefiller
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.engine import runner
from pagemesh.kv_transfer import frames, streams
from pagemesh.kv_transfer.kv_import import KvImport
from pagemesh.messages import logprobs_from_proto
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.sampling.params import SamplingParams
from pagemesh.v1 import decode_pb2, types_pb2
from pagemesh.worker.dispatcher import RequestEvent
from tests.fakes.engine import FakeEngine, expected_tokens, fake_logprobs
from tests.support.recording_engine import RecordingEngine
from tests.support.saboteur import Chunks, kind_of, sabotaged_role
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession, RunningWorker, running_worker

PROMPT = [10 + (7 * i) % 900 for i in range(150)]
NUM_TOKENS = 12
# Of the fake, in one layer: keys and values of 16 tokens with two float32 each.
BLOCK_LAYER_BYTES = 2 * 16 * 2 * 4
SMALL_CHUNKS = SchedulerConfig(8, max_num_batched_tokens=32)


@pytest.fixture(autouse=True)
def two_blocks_per_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have also the fake's tiny blocks travel in several messages."""
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 1024)


@pytest.fixture
async def prefill() -> AsyncIterator[RunningWorker]:
    engine = FakeEngine(scheduler=SMALL_CHUNKS)
    async with running_worker(PREFILL_ROLE, engine) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of prefill free")


@pytest.fixture
def decode_engine() -> RecordingEngine:
    return RecordingEngine()


@pytest.fixture
async def decode(decode_engine: RecordingEngine) -> AsyncIterator[RunningWorker]:
    async with running_worker(DECODE_ROLE, decode_engine) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of decode free")
        assert len(decode_engine.import_ids) == len(set(decode_engine.import_ids))


def failures(decode: RunningWorker, reason: str) -> float:
    return decode.sample("pagemesh:kv_import_failures_total", rpc="prefill", reason=reason)


def outcomes(decode: RunningWorker, outcome: str) -> float:
    return decode.sample("pagemesh:remote_prefills_total", outcome=outcome)


def plan_of(worker_id: str, address: str, epoch: int = 1) -> decode_pb2.PrefillPlan:
    peer = types_pb2.PeerWorker(worker_id=worker_id, address=address, epoch=epoch)
    return decode_pb2.PrefillPlan(workers=[peer])


async def assert_same_tokens(decode: RunningWorker, plan: decode_pb2.PrefillPlan) -> None:
    async with RouterSession(decode.address) as session:
        received = await session.generate(1, PROMPT, max_tokens=NUM_TOKENS, plan=plan)
    assert received.error is None
    assert tuple(received.token_ids) == expected_tokens(PROMPT, NUM_TOKENS)


async def test_a_prompt_is_prefilled_on_another_worker(
    prefill: RunningWorker, decode: RunningWorker, decode_engine: RecordingEngine
) -> None:
    async with RouterSession(decode.address) as session:
        received = await session.generate(1, PROMPT, max_tokens=NUM_TOKENS, plan=prefill.plan)
    assert tuple(received.token_ids) == expected_tokens(PROMPT, NUM_TOKENS)
    assert received.kv is not None
    assert received.kv.received_token_count == 150
    assert decode_engine.imported == [150]
    assert outcomes(decode, "complete") == 1
    assert decode.sample("pagemesh:kv_tokens_received_total") == 150
    assert prefill.sample("pagemesh:kv_blocks_sent_total", rpc="prefill") == 10
    assert prefill.sample("vllm:generation_tokens_total", model_name="fake") == 1


async def test_a_prompt_that_travels_layer_by_layer_is_the_same(
    prefill: RunningWorker,
    decode: RunningWorker,
    decode_engine: RecordingEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "MIN_GROUP_BYTES", 1)
    await assert_same_tokens(decode, prefill.plan)
    assert decode_engine.imported == [150]
    assert prefill.sample("pagemesh:kv_blocks_sent_total", rpc="prefill") == 10


async def test_tokens_of_a_chunk_that_fails_are_not_counted_though_layers_of_them_came(
    decode: RunningWorker, decode_engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MIN_GROUP_BYTES", 1)
    engine = FakeEngine(scheduler=SMALL_CHUNKS)
    steps: list[int] = []
    # Four blocks of both layers, and two of the first one.
    num_bytes = (4 * 2 + 2) * BLOCK_LAYER_BYTES
    loop = asyncio.get_running_loop()
    async with running_worker(PREFILL_ROLE, engine) as prefill:

        def all_has_left() -> bool:
            return prefill.sample("pagemesh:kv_bytes_sent_total", rpc="prefill") == num_bytes

        def fail_in_third_chunk(layer: int) -> None:
            steps.append(layer)
            if steps == [0, 1, 0, 1, 0, 1]:
                waiting = wait_until(all_has_left, "what was computed has left")
                asyncio.run_coroutine_threadsafe(waiting, loop).result(10)
                raise RuntimeError("device lost")

        engine.runner.before_layer = fail_in_third_chunk
        await assert_same_tokens(decode, prefill.plan)
        assert decode_engine.imported == [64]
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")


async def test_log_probabilities_do_not_tell_where_the_first_token_was_sampled(
    prefill: RunningWorker, decode: RunningWorker, decode_engine: RecordingEngine
) -> None:
    sampling = types_pb2.SamplingParams(max_tokens=NUM_TOKENS, logprobs=2)
    async with RouterSession(decode.address) as session:
        received = await session.generate(1, PROMPT, sampling=sampling, plan=prefill.plan)
    tokens = expected_tokens(PROMPT, NUM_TOKENS)
    assert tuple(received.token_ids) == tokens
    expected = [fake_logprobs(token_id, 2) for token_id in tokens]
    assert [logprobs_from_proto(each) for each in received.logprobs] == expected
    assert decode_engine.first_logprobs == expected[:1]
    assert (outcomes(decode, "complete"), list(received.prompt_logprobs)) == (1, [])


async def test_a_prompt_that_is_to_be_scored_is_prefilled_where_it_is_decoded(
    prefill: RunningWorker, decode: RunningWorker
) -> None:
    sampling = types_pb2.SamplingParams(max_tokens=NUM_TOKENS, prompt_logprobs=1)
    async with RouterSession(decode.address) as session:
        received = await session.generate(1, PROMPT, sampling=sampling, plan=prefill.plan)
    assert tuple(received.token_ids) == expected_tokens(PROMPT, NUM_TOKENS)
    expected = [fake_logprobs(token_id, 1) for token_id in PROMPT[1:]]
    assert [logprobs_from_proto(each) for each in received.prompt_logprobs] == expected
    assert (outcomes(decode, "complete"), list(received.logprobs)) == (0, [])


async def test_only_what_the_decode_worker_lacks_travels(
    prefill: RunningWorker, decode: RunningWorker
) -> None:
    async with RouterSession(decode.address) as session:
        await session.generate(1, PROMPT[:64])
        received = await session.generate(2, PROMPT, max_tokens=NUM_TOKENS, plan=prefill.plan)
    assert tuple(received.token_ids) == expected_tokens(PROMPT, NUM_TOKENS)
    assert received.usage is not None and received.kv is not None
    assert received.usage.cached_token_count == 64
    assert received.kv.received_token_count == 86
    assert decode.sample("pagemesh:kv_tokens_received_total") == 86


async def test_nothing_is_asked_for_when_less_than_a_block_is_missing(
    prefill: RunningWorker, decode: RunningWorker
) -> None:
    async with RouterSession(decode.address) as session:
        await session.generate(1, PROMPT)
        received = await session.generate(2, PROMPT, max_tokens=NUM_TOKENS, plan=prefill.plan)
    assert tuple(received.token_ids) == expected_tokens(PROMPT, NUM_TOKENS)
    assert outcomes(decode, "local") == 1
    assert prefill.sample("pagemesh:kv_bytes_sent_total", rpc="prefill") == 0


async def test_many_prompts_at_once_get_their_own_tokens(
    prefill: RunningWorker, decode: RunningWorker
) -> None:
    prompts = {handle: [handle, *PROMPT[: 5 * handle]] for handle in range(1, 16)}
    async with RouterSession(decode.address) as session:
        for handle, prompt in prompts.items():
            await session.submit(handle, prompt, plan=prefill.plan, seed=handle)
        for handle, prompt in prompts.items():
            received = await session.over(handle)
            assert tuple(received.token_ids) == expected_tokens(prompt, 8, seed=handle), handle


async def test_a_request_of_one_token_needs_no_blocks_afterwards(
    prefill: RunningWorker, decode: RunningWorker
) -> None:
    async with RouterSession(decode.address) as session:
        received = await session.generate(1, PROMPT, max_tokens=1, plan=prefill.plan)
    assert tuple(received.token_ids) == expected_tokens(PROMPT, 1)


async def test_a_resumed_request_gets_the_kv_of_its_tokens_too_and_goes_on_behind_them(
    prefill: RunningWorker, decode: RunningWorker, decode_engine: RecordingEngine
) -> None:
    tokens = expected_tokens(PROMPT, NUM_TOKENS)
    async with RouterSession(decode.address) as session:
        received = await session.generate(
            1, PROMPT, resume=tokens[:4], max_tokens=NUM_TOKENS, plan=prefill.plan
        )
    assert tuple(received.token_ids) == tokens[4:]
    assert decode_engine.imported == [154]
    assert outcomes(decode, "complete") == 1


async def test_a_prefill_worker_that_is_not_there_costs_only_time(decode: RunningWorker) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        await assert_same_tokens(decode, plan_of("gone", address))
    assert failures(decode, "UNAVAILABLE") == 1


async def test_a_prefill_worker_killed_in_the_middle_costs_only_time(
    decode: RunningWorker, decode_engine: RecordingEngine
) -> None:
    killed = asyncio.Event()

    async def wait_for_death_after_two_runs(chunks: Chunks) -> Chunks:
        number = 0
        async for chunk in chunks:
            yield chunk
            number += kind_of(chunk) == "blocks"
            if number == 2:
                killed.set()
                await asyncio.Event().wait()

    role = sabotaged_role(wait_for_death_after_two_runs)
    engine = FakeEngine(scheduler=SMALL_CHUNKS)
    async with (
        running_worker(role, engine, grace_period=0.0) as prefill,
        RouterSession(decode.address) as session,
    ):
        await session.submit(1, PROMPT, max_tokens=NUM_TOKENS, plan=prefill.plan)
        await asyncio.wait_for(killed.wait(), 5.0)
        await prefill.server.close()
        received = await session.over(1)
    assert received.error is None
    assert tuple(received.token_ids) == expected_tokens(PROMPT, NUM_TOKENS)
    # What had come until then was kept.
    assert decode_engine.imported == [64]
    assert outcomes(decode, "fallback") == 1
    assert engine.num_free_blocks == 64


async def test_a_prefill_worker_that_stalls_is_given_up(
    decode: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stall_after_the_header(chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            yield chunk
            await asyncio.Event().wait()

    engine = FakeEngine()
    async with running_worker(sabotaged_role(stall_after_the_header), engine) as prefill:
        monkeypatch.setattr(streams, "STALL_TIMEOUT", 0.2)
        await assert_same_tokens(decode, prefill.plan)
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
    assert failures(decode, "KV_STALLED") == 1


async def test_a_stream_that_ends_early_leaves_the_rest_to_be_computed(
    decode: RunningWorker,
) -> None:
    async def only_two_messages(chunks: Chunks) -> Chunks:
        number = 0
        async for chunk in chunks:
            yield chunk
            number += 1
            if number == 2:
                return

    engine = FakeEngine(scheduler=SMALL_CHUNKS)
    async with running_worker(sabotaged_role(only_two_messages), engine) as prefill:
        await assert_same_tokens(decode, prefill.plan)
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
    assert failures(decode, "KV_INCOMPLETE") == 1


@pytest.mark.parametrize("how", ["cancel", "break", "deadline"])
async def test_ending_a_request_frees_its_blocks_on_both_workers(
    decode: RunningWorker, how: str
) -> None:
    engine = FakeEngine(seconds_per_token=0.05, scheduler=SMALL_CHUNKS)
    async with (
        running_worker(PREFILL_ROLE, engine) as prefill,
        RouterSession(decode.address) as session,
    ):
        time_limit = 0.1 if how == "deadline" else 20.0
        await session.submit(1, PROMPT, max_tokens=300, plan=prefill.plan, time_limit=time_limit)
        await wait_until(lambda: not prefill.all_blocks_free(), "prefill runs")
        assert not decode.all_blocks_free()
        if how == "cancel":
            await session.cancel(1)
        elif how == "break":
            session.call.cancel()
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
        await wait_until(decode.all_blocks_free, "all blocks of decode free")
        assert outcomes(decode, "cancelled") == 1
        # Stopped at a chunk's boundary, not run to its end.
        assert prefill.sample("vllm:generation_tokens_total", model_name="fake") == 0


async def test_a_grant_is_given_back_by_a_task_that_never_ran(
    prefill: RunningWorker, decode: RunningWorker
) -> None:
    prefiller = RemotePrefiller(decode.worker)
    request = EngineRequest("r", tuple(PROMPT), SamplingParams(), await_kv=True)
    events: list[RequestEvent] = []
    decode.worker.dispatcher.submit(request, events.append)
    await wait_until(lambda: bool(events), "the grant")
    grant = events[0]
    assert isinstance(grant, KvGrant)
    deadline = asyncio.get_running_loop().time() + 10
    kv = KvImport(decode.worker, request, "client-1", grant, deadline)
    task = prefiller.start(kv, prefill.plan)
    task.cancel()
    await prefiller.close()
    decode.worker.engine.cancel("r")
    await wait_until(decode.all_blocks_free, "all blocks of decode free")


async def test_a_stopping_decode_worker_frees_the_prefill_worker(prefill: RunningWorker) -> None:
    decode_engine = FakeEngine()
    slow = FakeEngine(seconds_per_token=0.05, scheduler=SMALL_CHUNKS)
    async with (
        running_worker(PREFILL_ROLE, slow) as slow_prefill,
        running_worker(DECODE_ROLE, decode_engine, grace_period=0.0) as decode,
        RouterSession(decode.address) as session,
    ):
        await session.submit(1, PROMPT, plan=slow_prefill.plan)
        await wait_until(lambda: not slow_prefill.all_blocks_free(), "prefill runs")
        await asyncio.wait_for(decode.server.close(), 3.0)
        await wait_until(slow_prefill.all_blocks_free, "all blocks of prefill free")
        assert decode_engine.num_free_blocks == 64
