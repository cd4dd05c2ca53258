"""The demo model behind real workers: pulled KV, also what a decode worker generated, changes no token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.loading.engine import load_engine
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.v1 import decode_pb2, types_pb2
from pagemesh.worker.server import Role
from tests.support.computed_tokens import ComputedTokens
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession, RunningWorker, running_worker

FIRST_TURN = [20 + (7 * i) % 400 for i in range(210)]
QUESTION = [30 + (11 * i) % 400 for i in range(75)]
NUM_ANSWER_TOKENS = 60


class Mesh(NamedTuple):
    """The workers of two turns, which share nothing."""

    first: RunningWorker
    second: RunningWorker
    prefill: RunningWorker
    prefilled: ComputedTokens
    """By the prefill worker."""
    decoded: ComputedTokens
    """By the second turn's decode worker."""


@pytest.fixture(params=["auto", "fp8", "int8"], ids=lambda kind: f"KV {kind}")
async def mesh(request: pytest.FixtureRequest, demo_model: Path) -> AsyncIterator[Mesh]:
    cache = CacheConfig(kv_cache_memory=0.05, kv_cache_dtype=request.param)
    async with AsyncExitStack() as stack:

        async def start(role: Role, max_num_batched_tokens: int) -> RunningWorker:
            engine = await asyncio.to_thread(
                load_engine,
                ModelConfig(model=str(demo_model), dtype="float32"),
                cache,
                SchedulerConfig(8, max_num_batched_tokens=max_num_batched_tokens),
            )
            computed.append(ComputedTokens(engine))
            return await stack.enter_async_context(running_worker(role, engine))

        computed: list[ComputedTokens] = []
        first, second = await start(DECODE_ROLE, 512), await start(DECODE_ROLE, 512)
        prefill = await start(PREFILL_ROLE, 48)
        yield Mesh(first, second, prefill, prefilled=computed[2], decoded=computed[1])
        for worker in (first, second, prefill):
            await wait_until(worker.all_blocks_free, "all blocks free")


async def generate(
    worker: RunningWorker,
    prompt: Sequence[int],
    temperature: float,
    plan: decode_pb2.PrefillPlan | None = None,
    cache_salt: bytes = b"",
    num_tokens: int = NUM_ANSWER_TOKENS,
) -> tuple[list[int], types_pb2.KvPath.ValueType]:
    sampling = types_pb2.SamplingParams(
        max_tokens=num_tokens, seed=5, temperature=temperature, ignore_eos=True
    )
    async with RouterSession(worker.address) as session:
        received = await session.generate(
            1, prompt, sampling=sampling, plan=plan, cache_salt=cache_salt
        )
    assert received.error is None
    assert received.kv is not None
    assert len(received.token_ids) == num_tokens
    return received.token_ids, received.kv.path


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "seeded"])
async def test_a_second_turn_with_kv_of_the_first_gives_the_same_tokens(
    mesh: Mesh, temperature: float
) -> None:
    answer, _ = await generate(mesh.first, FIRST_TURN, temperature)
    prompt = [*FIRST_TURN, *answer, *QUESTION]
    # Another salt finds nothing in the cache: everything is computed in one place.
    expected = await generate(mesh.first, prompt, temperature, cache_salt=b"aggregated")
    assert expected[1] == types_pb2.KV_PATH_LOCAL

    # Of 270 tokens, the KV of the last was never computed: 16 full blocks.
    source = mesh.first.source(16)
    remote = decode_pb2.PrefillPlan(workers=[mesh.prefill.peer], source=source)
    tokens = await generate(mesh.second, prompt, temperature, remote)
    assert tokens == (expected[0], types_pb2.KV_PATH_REMOTE_PULL)
    # Only what is new.
    assert mesh.prefilled.count == len(prompt) - 256
    assert mesh.second.sample("pagemesh:remote_prefills_total", outcome="complete") == 1


async def test_a_second_turn_on_another_decode_worker_pulls_the_first(mesh: Mesh) -> None:
    answer, _ = await generate(mesh.first, FIRST_TURN, 0.8)
    prompt = [*FIRST_TURN, *answer, *QUESTION]
    expected = await generate(mesh.first, prompt, 0.8, cache_salt=b"aggregated")
    pull = decode_pb2.PrefillPlan(source=mesh.first.source(16))
    tokens = await generate(mesh.second, prompt, 0.8, pull)
    assert tokens == (expected[0], types_pb2.KV_PATH_PULL)
    # The rest of the prompt, and each token of the answer but the last.
    assert mesh.decoded.count == len(prompt) - 256 + NUM_ANSWER_TOKENS - 1


PATHS = {
    "local": types_pb2.KV_PATH_LOCAL,
    "remote": types_pb2.KV_PATH_REMOTE,
    "pull": types_pb2.KV_PATH_PULL,
    "remote_pull": types_pb2.KV_PATH_REMOTE_PULL,
}


async def test_as_many_pulls_as_prefills_here_and_elsewhere_give_the_same_tokens(
    mesh: Mesh,
) -> None:
    # A block and a little, a prefill worker's step but a token, and many steps.
    prompts = [[20 + (n * i) % 400 for i in range(n)] for n in (18, 47, 210)]
    for number, prompt in enumerate(prompts):
        ask = partial(generate, prompt=prompt, temperature=0.4 * number, num_tokens=16)
        for name, path in PATHS.items():
            # Under a salt of its own nothing is known but what the first worker computes now.
            salt = f"{name} {number}".encode()
            expected, _ = await ask(mesh.first, cache_salt=salt)
            plan = decode_pb2.PrefillPlan()
            if "remote" in name:
                plan.workers.append(mesh.prefill.peer)
            if "pull" in name:
                plan.source.CopyFrom(mesh.first.source((len(prompt) - 1) // 16))
            planned = None if name == "local" else plan
            given = await ask(mesh.second, plan=planned, cache_salt=salt)
            assert given == (expected, path), (name, len(prompt))

    def pulls(worker: RunningWorker, path: str) -> float:
        return worker.sample("pagemesh:kv_pulls_total", path=path, outcome="complete")

    assert pulls(mesh.second, "pull") == len(prompts)
    assert pulls(mesh.prefill, "remote_pull") == len(prompts)
    assert pulls(mesh.second, "remote_pull") == pulls(mesh.prefill, "pull") == 0
    for outcome, times in (("complete", 2), ("pulled", 1)):
        sample = mesh.second.sample("pagemesh:remote_prefills_total", outcome=outcome)
        assert sample == times * len(prompts), outcome
