"""When an answer can go on: what is told of the first token and the KV in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.errors import UnavailableError
from pagemesh.kv_transfer import frames
from pagemesh.v1 import types_pb2
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.support.saboteur import Chunks, kind_of, sabotaged_role
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession, RunningWorker, running_worker

PROMPT = [10 + (7 * i) % 900 for i in range(150)]
NUM_TOKENS = 12
EXPOSED = "pagemesh:kv_transfer_exposed_seconds"
REMOTE = "pagemesh:remote_prefill_seconds"


@pytest.fixture(autouse=True)
def two_blocks_per_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 1024)


@pytest.fixture
async def decode() -> AsyncIterator[RunningWorker]:
    async with running_worker(DECODE_ROLE, FakeEngine()) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of decode free")


async def test_waiting_for_kv_behind_the_first_token_is_measured(decode: RunningWorker) -> None:
    go_on = asyncio.Event()

    async def late_blocks(chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            yield chunk
            if kind_of(chunk) == "first_token":
                await go_on.wait()

    async with (
        running_worker(sabotaged_role(late_blocks), FakeEngine()) as late,
        RouterSession(decode.address) as session,
    ):
        await session.submit(1, PROMPT, max_tokens=NUM_TOKENS, plan=late.plan)
        await session.has_tokens(1)
        loop = asyncio.get_running_loop()
        noticed_at = loop.time()
        await wait_until(lambda: loop.time() > noticed_at + 0.05, "some time")
        assert decode.sample(f"{EXPOSED}_count") == 0
        assert session[1].kv is None
        go_on.set()
        received = await session.over(1)
    assert decode.sample(f"{EXPOSED}_count") == 1
    assert 0.05 <= decode.sample(f"{EXPOSED}_sum") < 5.0
    # From the call on, and so longer.
    assert decode.sample(f"{REMOTE}_count") == 1
    assert decode.sample(f"{EXPOSED}_sum") < decode.sample(f"{REMOTE}_sum") < 5.0
    assert received.kv is not None
    assert received.kv.path == types_pb2.KV_PATH_REMOTE
    assert received.kv.received_token_count == 150
    # The time to the last KV, and not to the first token.
    assert 0.05 <= received.kv.time_to_ready.ToNanoseconds() / 1e9 < 5.0


async def test_nothing_is_exposed_when_all_kv_came_before_the_first_token(
    decode: RunningWorker,
) -> None:
    async def token_last(chunks: Chunks) -> Chunks:
        tokens = []
        async for chunk in chunks:
            if kind_of(chunk) == "first_token":
                tokens.append(chunk)
            else:
                yield chunk
        for token in tokens:
            yield token

    async with (
        running_worker(sabotaged_role(token_last), FakeEngine()) as prefill,
        RouterSession(decode.address) as session,
    ):
        await session.generate(1, PROMPT, max_tokens=NUM_TOKENS, plan=prefill.plan)
    assert decode.sample(f"{EXPOSED}_count") == 1
    assert decode.sample(f"{EXPOSED}_sum") == 0


async def test_a_prompt_whose_stream_broke_behind_the_token_is_ready_when_it_is_computed_here() -> (
    None
):
    async def token_alone(chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            if kind_of(chunk) in ("header", "first_token"):
                yield chunk
        raise UnavailableError("told to break")

    # Each step takes 0.1 s: three for the prompt's 150 tokens and the first one of the answer.
    slow = FakeEngine(
        seconds_per_token=0.1, scheduler=SchedulerConfig(8, max_num_batched_tokens=64)
    )
    async with (
        running_worker(sabotaged_role(token_alone), FakeEngine()) as first,
        running_worker(DECODE_ROLE, slow) as decode,
        RouterSession(decode.address) as session,
    ):
        await session.submit(1, PROMPT, max_tokens=NUM_TOKENS, plan=first.plan)
        await session.has_tokens(1)
        assert (len(session[1].token_ids), session[1].kv) == (1, None)
        await session.has_tokens(1, 2)
        received = session[1]
        assert received.kv is not None
        assert received.kv.path == types_pb2.KV_PATH_LOCAL
        assert received.kv.received_token_count == 0
        assert 0.3 <= received.kv.time_to_ready.ToNanoseconds() / 1e9 < 5.0
        await session.over(1)
        # It was not complete.
        assert (decode.sample(f"{REMOTE}_count"), decode.sample(f"{EXPOSED}_count")) == (0, 0)
    assert tuple(received.token_ids) == expected_tokens(PROMPT, NUM_TOKENS)
