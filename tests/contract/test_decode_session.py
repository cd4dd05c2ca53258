"""Decode.Session over a real gRPC connection, with the real scheduler and made-up tokens."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import grpc
import pytest

from pagemesh.decode.service import DECODE_ROLE
from pagemesh.v1 import decode_pb2, kv_transfer_pb2, types_pb2
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession, RunningWorker, running_worker

PROMPT = list(range(100, 137))


@pytest.fixture
async def worker() -> AsyncIterator[RunningWorker]:
    async with running_worker(DECODE_ROLE, FakeEngine()) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks free")


@pytest.fixture
async def slow_worker() -> AsyncIterator[RunningWorker]:
    engine = FakeEngine(seconds_per_token=0.01)
    async with running_worker(DECODE_ROLE, engine) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks free")


async def test_a_request_gets_its_tokens_and_usage(worker: RunningWorker) -> None:
    async with RouterSession(worker.address) as session:
        received = await session.generate(1, PROMPT, max_tokens=5, seed=3)
    assert tuple(received.token_ids) == expected_tokens(PROMPT, 5, seed=3)
    assert received.finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert received.usage is not None
    assert received.usage.prompt_token_count == 37
    assert received.usage.cached_token_count == 0
    assert received.kv is not None
    assert received.kv.path == types_pb2.KV_PATH_LOCAL
    assert received.kv.time_to_ready.nanos > 0


async def test_a_repeated_prompt_reports_what_the_prefix_cache_held(worker: RunningWorker) -> None:
    async with RouterSession(worker.address) as session:
        await session.generate(1, PROMPT)
        received = await session.generate(2, PROMPT)
    assert received.usage is not None
    assert received.usage.cached_token_count == 32
    assert tuple(received.token_ids) == expected_tokens(PROMPT, 8)


async def test_requests_of_one_stream_each_get_their_own_tokens(worker: RunningWorker) -> None:
    prompts = {handle: list(range(handle * 10, handle * 10 + handle)) for handle in range(1, 21)}
    async with RouterSession(worker.address) as session:
        for handle, prompt in prompts.items():
            await session.submit(handle, prompt)
        for handle, prompt in prompts.items():
            received = await session.over(handle)
            assert tuple(received.token_ids) == expected_tokens(prompt, 8), handle


async def test_a_step_is_one_message_for_all_requests_of_a_session(
    slow_worker: RunningWorker,
) -> None:
    async with RouterSession(slow_worker.address) as session:
        for handle in (1, 2, 3):
            await session.submit(handle, [handle, 5], max_tokens=20)
        for handle in (1, 2, 3):
            await session.over(handle)
    assert max(len(response.outputs) for response in session.responses) == 3
    assert len(session.responses) < 60


async def test_sessions_do_not_see_each_others_requests(worker: RunningWorker) -> None:
    async with RouterSession(worker.address) as one, RouterSession(worker.address) as other:
        await one.submit(1, [11])
        await other.submit(1, [22])
        assert tuple((await one.over(1)).token_ids) == expected_tokens([11], 8)
        assert tuple((await other.over(1)).token_ids) == expected_tokens([22], 8)


async def test_resumed_tokens_are_counted_and_not_repeated(worker: RunningWorker) -> None:
    tokens = expected_tokens(PROMPT, 8)
    async with RouterSession(worker.address) as session:
        received = await session.generate(1, PROMPT, resume=tokens[:3], max_tokens=8)
    assert tuple(received.token_ids) == tokens[3:]


async def test_forks_share_the_prompt_of_an_earlier_request(slow_worker: RunningWorker) -> None:
    async with RouterSession(slow_worker.address) as session:
        await session.submit(1, PROMPT, max_tokens=20)
        for handle in (2, 3):
            await session.submit(handle, PROMPT, seed=handle, max_tokens=20, fork_of=1)
        for handle in (2, 3):
            received = await session.over(handle)
            assert tuple(received.token_ids) == expected_tokens(PROMPT, 20, seed=handle)
            assert received.usage is not None
            assert received.usage.cached_token_count == 36  # all but the last one


async def test_a_fork_of_a_request_that_is_over_runs_alone(worker: RunningWorker) -> None:
    async with RouterSession(worker.address) as session:
        await session.generate(1, PROMPT)
        for handle, leader in ((2, 1), (3, 99)):
            received = await session.generate(handle, PROMPT, seed=handle, fork_of=leader)
            assert tuple(received.token_ids) == expected_tokens(PROMPT, 8, seed=handle)


async def test_a_request_with_handle_0_is_nobodys_leader(worker: RunningWorker) -> None:
    async with RouterSession(worker.address) as session:
        await session.submit(0, PROMPT, max_tokens=20)
        received = await session.generate(1, [5, 6])
    assert tuple(received.token_ids) == expected_tokens([5, 6], 8)


async def test_a_fork_outlives_its_cancelled_leader(slow_worker: RunningWorker) -> None:
    async with RouterSession(slow_worker.address) as session:
        await session.submit(1, PROMPT, max_tokens=400)
        await session.submit(2, PROMPT, seed=2, fork_of=1)
        await session.cancel(1)
        received = await session.over(2)
    assert tuple(received.token_ids) == expected_tokens(PROMPT, 8, seed=2)


async def test_cancel_ends_a_request_and_leaves_the_others(slow_worker: RunningWorker) -> None:
    async with RouterSession(slow_worker.address) as session:
        await session.submit(1, PROMPT, max_tokens=400)
        await session.submit(2, [7, 8], max_tokens=30)
        await session.has_tokens(1)
        await session.cancel(1)
        assert (await session.over(1)).finish_reason == types_pb2.FINISH_REASON_CANCELLED
        assert tuple((await session.over(2)).token_ids) == expected_tokens([7, 8], 30)
        await session.cancel(1)
        await session.cancel(99)
        assert (await session.generate(3, [9])).is_finished


async def test_all_blocks_come_back_when_the_router_cancels_the_stream(
    slow_worker: RunningWorker,
) -> None:
    async with RouterSession(slow_worker.address) as session:
        for handle in range(1, 6):
            await session.submit(handle, [handle], max_tokens=400)
        await session.has_tokens(5)
        assert not slow_worker.all_blocks_free()
        session.call.cancel()
        await wait_until(slow_worker.all_blocks_free, "all blocks free")


async def test_all_blocks_come_back_when_the_router_stops_asking(
    slow_worker: RunningWorker,
) -> None:
    async with RouterSession(slow_worker.address) as session:
        await session.submit(1, PROMPT, max_tokens=400)
        await session.has_tokens(1)
        await session.call.done_writing()
        await wait_until(slow_worker.all_blocks_free, "all blocks free")
        await wait_until(lambda: session.has_ended, "the end of the stream")


async def test_one_broken_session_leaves_the_requests_of_another(
    slow_worker: RunningWorker,
) -> None:
    async with (
        RouterSession(slow_worker.address) as broken,
        RouterSession(slow_worker.address) as other,
    ):
        await broken.submit(1, PROMPT, max_tokens=400)
        await other.submit(1, [4, 5], max_tokens=40)
        await broken.has_tokens(1)
        broken.call.cancel()
        assert tuple((await other.over(1)).token_ids) == expected_tokens([4, 5], 40)


async def test_a_request_is_ended_when_its_time_is_over(slow_worker: RunningWorker) -> None:
    async with RouterSession(slow_worker.address) as session:
        received = await session.generate(1, PROMPT, max_tokens=400, time_limit=0.3)
        assert received.finish_reason == types_pb2.FINISH_REASON_ERROR
        assert received.error is not None
        assert received.error.code == "DEADLINE_EXCEEDED"
        assert 1 <= len(received.token_ids) < 100
        await wait_until(slow_worker.all_blocks_free, "all blocks free")
        assert (await session.generate(2, [9])).is_finished


def peer_of(worker_id: str, address: str, epoch: int) -> types_pb2.PeerWorker:
    return types_pb2.PeerWorker(worker_id=worker_id, address=address, epoch=epoch)


def plan_of(worker_id: str, address: str, epoch: int) -> decode_pb2.PrefillPlan:
    return decode_pb2.PrefillPlan(workers=[peer_of(worker_id, address, epoch)])


def pull_plan_of(worker_id: str, address: str, epoch: int) -> decode_pb2.PrefillPlan:
    source = kv_transfer_pb2.KvSource(worker=peer_of(worker_id, address, epoch), block_count=1)
    return decode_pb2.PrefillPlan(source=source)


def timed_plan(overrule_seconds: float) -> decode_pb2.PrefillPlan:
    plan = plan_of("p", "a:1", 1)
    plan.overrule_seconds = overrule_seconds
    return plan


@pytest.mark.parametrize(
    ("prompt", "settings", "reason"),
    [
        pytest.param([], {}, "INVALID_REQUEST", id="empty prompt"),
        pytest.param([5, 1000], {}, "INVALID_REQUEST", id="unknown token"),
        pytest.param([5], {"max_tokens": 0}, "INVALID_REQUEST", id="no tokens wanted"),
        pytest.param([5] * 600, {}, "CONTEXT_LENGTH_EXCEEDED", id="longer than the context"),
        pytest.param([5], {"time_limit": 0.0}, "DEADLINE_EXCEEDED", id="no time left"),
        pytest.param([5], {"plan": plan_of("p", "", 1)}, "INVALID_REQUEST", id="no address"),
        pytest.param([5], {"plan": plan_of("p", "a:1", 0)}, "INVALID_REQUEST", id="no epoch"),
        pytest.param(
            [5],
            {"plan": decode_pb2.PrefillPlan()},
            "INVALID_REQUEST",
            id="neither worker nor source",
        ),
        pytest.param(
            [5], {"plan": pull_plan_of("", "a:1", 1)}, "INVALID_REQUEST", id="source without a name"
        ),
        pytest.param(
            [5],
            {"plan": timed_plan(-1.0)},
            "INVALID_REQUEST",
            id="overruled at a negative time",
        ),
        pytest.param(
            [5],
            {"plan": timed_plan(math.nan)},
            "INVALID_REQUEST",
            id="overruled at no time",
        ),
        pytest.param(
            [5],
            {"plan": plan_of("p", "a:1", 1), "fork_of": 7},
            "INVALID_REQUEST",
            id="fork with a plan",
        ),
    ],
)
async def test_a_wrong_request_gets_an_error_and_the_session_goes_on(
    worker: RunningWorker, prompt: list[int], settings: dict[str, object], reason: str
) -> None:
    async with RouterSession(worker.address) as session:
        received = await session.generate(1, prompt, **settings)
        assert received.finish_reason == types_pb2.FINISH_REASON_ERROR
        assert received.error is not None
        assert received.error.reason == reason
        assert (await session.generate(2, [9])).is_finished


async def test_a_handle_used_twice_ends_in_an_error(slow_worker: RunningWorker) -> None:
    async with RouterSession(slow_worker.address) as session:
        await session.submit(1, PROMPT, max_tokens=400)
        await session.has_tokens(1)
        await session.submit(1, [5])
        received = await session.over(1)
        assert received.error is not None
        assert "handle 1 is in use" in received.error.message
        await wait_until(slow_worker.all_blocks_free, "all blocks free")
        assert (await session.generate(2, [9])).is_finished


async def test_a_stopping_worker_finishes_what_runs_and_refuses_more() -> None:
    engine = FakeEngine(seconds_per_token=0.01)
    async with (
        running_worker(DECODE_ROLE, engine, grace_period=5.0) as worker,
        RouterSession(worker.address) as session,
    ):
        await session.submit(1, PROMPT, max_tokens=60)
        await session.has_tokens(1)
        closing = asyncio.create_task(worker.server.close())
        await asyncio.sleep(0)
        await session.submit(2, [5])
        refused = await session.over(2)
        assert refused.error is not None
        assert (refused.error.code, refused.error.reason) == ("UNAVAILABLE", "DRAINING")
        assert tuple((await session.over(1)).token_ids) == expected_tokens(PROMPT, 60)
        await asyncio.wait_for(closing, 2.0)
        assert await session.call.code() == grpc.StatusCode.OK


async def test_a_worker_stops_within_its_grace_period_whatever_runs() -> None:
    engine = FakeEngine(seconds_per_token=0.05)
    async with (
        running_worker(DECODE_ROLE, engine, grace_period=0.2) as worker,
        RouterSession(worker.address) as session,
    ):
        await session.submit(1, PROMPT, max_tokens=400)
        await session.has_tokens(1)
        await asyncio.wait_for(worker.server.close(), 2.0)
        await wait_until(lambda: session.has_ended, "the end of the stream")
        assert worker.all_blocks_free()
