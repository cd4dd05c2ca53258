"""The demo model behind real workers: a prompt prefilled elsewhere gives the tokens of local computing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pagemesh.config import CacheConfig, ModelConfig, SchedulerConfig
from pagemesh.core.engine import Engine
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.v1 import types_pb2
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession, RunningWorker, running_worker

# Ids only; what they mean does not matter here. From less than a block to many chunks.
PROMPTS = [[20 + (step * i) % 400 for i in range(15 * step)] for step in range(1, 13)]


def sampling(seed: int, temperature: float, regex: str) -> types_pb2.SamplingParams:
    # No request ends with its first token, so that all KV has to travel.
    structured = types_pb2.StructuredOutputs(regex=regex) if regex else None
    return types_pb2.SamplingParams(
        max_tokens=8,
        seed=seed,
        temperature=temperature,
        ignore_eos=True,
        structured_outputs=structured,
    )


def load(demo_model: Path, max_num_batched_tokens: int) -> Engine:
    from pagemesh.loading.engine import load_engine

    return load_engine(
        ModelConfig(model=str(demo_model), dtype="float32"),
        CacheConfig(kv_cache_memory=0.05),
        SchedulerConfig(8, max_num_batched_tokens=max_num_batched_tokens),
    )


@pytest.fixture
async def prefill(demo_model: Path) -> AsyncIterator[RunningWorker]:
    engine = await asyncio.to_thread(load, demo_model, 48)
    async with running_worker(PREFILL_ROLE, engine) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of prefill free")


@pytest.fixture
async def decode(demo_model: Path) -> AsyncIterator[RunningWorker]:
    engine = await asyncio.to_thread(load, demo_model, 128)
    async with running_worker(DECODE_ROLE, engine) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of decode free")


@pytest.mark.parametrize(
    ("temperature", "regex"),
    [(0.0, ""), (0.8, ""), (0.8, "[a-c]{30}")],
    ids=["greedy", "seeded", "structured"],
)
async def test_remote_prefill_gives_the_tokens_of_local_prefill(
    prefill: RunningWorker, decode: RunningWorker, temperature: float, regex: str
) -> None:
    async with RouterSession(decode.address) as session:
        local = {}
        for handle, prompt in enumerate(PROMPTS):
            # Another salt, so that the second round finds nothing in the cache.
            await session.submit(
                handle, prompt, sampling=sampling(handle, temperature, regex), cache_salt=b"local"
            )
        for handle in range(len(PROMPTS)):
            local[handle] = (await session.over(handle)).token_ids
        for handle, prompt in enumerate(PROMPTS):
            await session.submit(
                100 + handle,
                prompt,
                sampling=sampling(handle, temperature, regex),
                plan=prefill.plan,
            )
        for handle, prompt in enumerate(PROMPTS):
            remote = await session.over(100 + handle)
            assert remote.error is None
            assert remote.token_ids == local[handle], f"prompt of {len(prompt)} tokens"
    # The first prompt has less than one block.
    assert decode.sample("pagemesh:remote_prefills_total", outcome="complete") == 11
    assert decode.sample("pagemesh:remote_prefills_total", outcome="local") == 1
