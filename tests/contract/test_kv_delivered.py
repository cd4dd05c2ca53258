"""How many prompt tokens a decode worker says that nobody computed for a request, whichever way their KV came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import NamedTuple

import grpc
import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.errors import UnavailableError
from pagemesh.kv_transfer import frames
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import decode_pb2, prefill_pb2, prefill_pb2_grpc, types_pb2
from pagemesh.worker.server import Role
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.support.saboteur import Chunks, kind_of, sabotaged_role
from tests.support.workers import Received, RouterSession, RunningWorker, running_worker

PROMPT = [10 + (7 * i) % 900 for i in range(150)]
NUM_TOKENS = 6
SMALL_CHUNKS = SchedulerConfig(8, max_num_batched_tokens=32)


@pytest.fixture(autouse=True)
def two_blocks_per_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 1024)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def decoder(stack: AsyncExitStack, num_held: int) -> RunningWorker:
    """A decode worker whose cache has so many tokens of the prompt."""
    worker = await stack.enter_async_context(running_worker(DECODE_ROLE, FakeEngine()))
    if num_held:
        async with RouterSession(worker.address) as session:
            await session.generate(1, PROMPT[:num_held], max_tokens=1)
    return worker


async def prefiller(
    stack: AsyncExitStack, num_held: int, role: Role = PREFILL_ROLE
) -> RunningWorker:
    """A prefill worker whose cache has so many tokens of the prompt."""
    engine = FakeEngine(scheduler=SMALL_CHUNKS)
    worker = await stack.enter_async_context(running_worker(role, engine))
    if num_held:
        await warm(worker, num_held)
    return worker


async def warm(prefill: RunningWorker, num_tokens: int) -> None:
    request = prefill_pb2.PrefillRequest(
        prompt_token_ids=PROMPT[:num_tokens],
        sampling=types_pb2.SamplingParams(max_tokens=1),
        model_fingerprint="fake",
        kv_layout=prefill.worker.info.kv_layout,
    )
    async with open_channel(prefill.address) as channel:
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        with suppress(grpc.aio.AioRpcError):  # one that breaks has computed it all the same
            async for _ in stub.Prefill(request, timeout=10):
                pass
    await prefill.step_has_passed()


async def run(
    decode: RunningWorker, plan: decode_pb2.PrefillPlan | None, max_tokens: int = NUM_TOKENS
) -> Received:
    async with RouterSession(decode.address) as session:
        received = await session.generate(9, PROMPT, max_tokens=max_tokens, plan=plan)
    assert received.error is None
    assert tuple(received.token_ids) == expected_tokens(PROMPT, max_tokens)
    return received


def delivered(received: Received) -> int:
    """What was known in the end, which in these cases was so with the first token already."""
    assert received.usage is not None and received.kv is not None
    assert received.usage.prompt_token_count == 150
    assert received.usage.cached_token_count == received.kv.cached_token_count
    return received.kv.cached_token_count


class State(NamedTuple):
    """Tokens of the prompt in each worker's cache; None where the plan has no such worker."""

    decode: int
    prefill: int | None
    source: int | None
    delivered: int


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(State(0, None, None, 0), id="cold"),
        pytest.param(State(64, None, None, 64), id="own cache"),
        pytest.param(State(0, 0, None, 0), id="computed by a prefill worker"),
        pytest.param(State(0, 64, None, 64), id="prefill worker's cache"),
        # What the prefill worker computed of it once more is not what the answer was made from.
        pytest.param(State(64, 0, None, 64), id="own cache before a prefill worker"),
        pytest.param(State(32, 96, None, 96), id="own cache and the prefill worker's"),
        pytest.param(State(96, 32, None, 96), id="own cache beyond the prefill worker's"),
        pytest.param(State(32, None, 96, 96), id="pulled"),
        pytest.param(State(0, 0, 96, 96), id="pulled by a prefill worker"),
        pytest.param(State(32, 64, 96, 96), id="three caches"),
    ],
)
@pytest.mark.parametrize("max_tokens", [1, NUM_TOKENS])
async def test_delivered_is_what_came_out_of_any_cache(
    stack: AsyncExitStack, state: State, max_tokens: int
) -> None:
    decode = await decoder(stack, state.decode)
    plan = decode_pb2.PrefillPlan()
    if state.prefill is not None:
        plan.workers.append((await prefiller(stack, state.prefill)).peer)
    if state.source is not None:
        holder = await decoder(stack, state.source)
        plan.source.CopyFrom(holder.source(state.source // 16))
    received = await run(decode, plan if plan != decode_pb2.PrefillPlan() else None, max_tokens)
    assert delivered(received) == state.delivered


def broken(num_blocks_messages: int) -> Role:
    """A prefill worker that sends so many messages of two blocks each and no token."""

    async def sabotage(chunks: Chunks) -> Chunks:
        seen = 0
        async for chunk in chunks:
            if kind_of(chunk) == "blocks":
                if seen == num_blocks_messages:
                    raise UnavailableError("told to break")
                seen += 1
            if kind_of(chunk) != "first_token":
                yield chunk

    return sabotaged_role(sabotage)


@pytest.mark.parametrize(
    ("first", "second", "num_delivered"),
    [
        pytest.param(96, 0, 64, id="of the first, what it sent"),
        pytest.param(48, 0, 48, id="of the first, not what it computed"),
        pytest.param(0, 112, 48, id="of the second, what the first did not compute"),
        pytest.param(96, 112, 112, id="of both"),
    ],
)
async def test_each_of_two_prefill_workers_counts_for_what_it_brought(
    stack: AsyncExitStack, first: int, second: int, num_delivered: int
) -> None:
    decode = await decoder(stack, 0)
    workers = [await prefiller(stack, first, broken(2)), await prefiller(stack, second)]
    plan = decode_pb2.PrefillPlan(workers=[worker.peer for worker in workers])
    assert delivered(await run(decode, plan)) == num_delivered
    assert decode.sample("pagemesh:remote_prefills_total", outcome="complete") == 1


async def test_what_was_computed_here_behind_a_broken_stream_is_not_delivered(
    stack: AsyncExitStack,
) -> None:
    decode = await decoder(stack, 0)
    plan = (await prefiller(stack, 96, broken(1))).plan
    assert delivered(await run(decode, plan)) == 32


async def test_cached_kv_that_was_promised_with_the_first_token_and_never_came_is_taken_back(
    stack: AsyncExitStack,
) -> None:
    async def token_alone(chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            if kind_of(chunk) in ("header", "first_token"):
                yield chunk
        raise UnavailableError("told to break")

    decode = await decoder(stack, 32)
    received = await run(decode, (await prefiller(stack, 96, sabotaged_role(token_alone))).plan)
    assert received.usage is not None and received.kv is not None
    assert received.usage.cached_token_count == 96
    assert received.kv.cached_token_count == 32


async def test_of_a_resumed_answer_only_its_prompt_counts(stack: AsyncExitStack) -> None:
    decode = await decoder(stack, 0)
    answer = expected_tokens(PROMPT, 40)
    async with RouterSession(decode.address) as session:
        await session.generate(1, PROMPT, max_tokens=40)
        received = await session.generate(2, PROMPT, max_tokens=42, resume=answer)
    # 176 tokens of prompt and answer are cached; the last one of a prompt is always computed.
    assert delivered(received) == 149
