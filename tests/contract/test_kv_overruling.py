"""A decode worker knows its own cache and queue best: what it computes sooner it does not ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pagemesh.core.load import PrefillRate
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.v1 import types_pb2
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.support.workers import RouterSession, RunningWorker, running_worker

PROMPT = [10 + (7 * i) % 900 for i in range(150)]


@pytest.fixture
async def prefill() -> AsyncIterator[RunningWorker]:
    async with running_worker(PREFILL_ROLE, FakeEngine()) as running:
        yield running


@pytest.fixture
async def decode() -> AsyncIterator[RunningWorker]:
    async with running_worker(DECODE_ROLE, FakeEngine()) as running:
        yield running


@pytest.mark.parametrize(
    ("overrule_seconds", "has_measured", "outcome"),
    [
        pytest.param(1000.0, True, "overruled", id="sooner here"),
        pytest.param(1e-9, True, "complete", id="sooner there"),
        pytest.param(0.0, True, "complete", id="forbidden"),
        pytest.param(1000.0, False, "complete", id="nothing measured"),
    ],
)
async def test_a_plan_is_overruled_when_the_prompt_is_computed_sooner_here(
    prefill: RunningWorker,
    decode: RunningWorker,
    overrule_seconds: float,
    has_measured: bool,
    outcome: str,
) -> None:
    plan = prefill.plan
    plan.overrule_seconds = overrule_seconds
    async with RouterSession(decode.address) as session:
        if has_measured:
            await session.generate(1, [5] * 100)
        received = await session.generate(2, PROMPT, plan=plan)
    assert tuple(received.token_ids) == expected_tokens(PROMPT, 8)
    assert decode.sample("pagemesh:remote_prefills_total", outcome=outcome) == 1
    assert received.kv is not None
    is_local = outcome == "overruled"
    assert received.kv.received_token_count == (0 if is_local else 150)
    assert received.kv.path == (types_pb2.KV_PATH_LOCAL if is_local else types_pb2.KV_PATH_REMOTE)


@pytest.mark.parametrize(
    ("num_cached", "outcome"),
    [
        # 54 tokens are missing, which take 54 ms.
        pytest.param(96, "overruled", id="more than was thought"),
        # 102 tokens, which take 102 ms.
        pytest.param(48, "complete", id="too little"),
    ],
)
async def test_what_came_into_the_own_cache_meanwhile_may_overrule_a_plan(
    prefill: RunningWorker, num_cached: int, outcome: str
) -> None:
    plan = prefill.plan
    plan.overrule_seconds = 0.08
    engine = FakeEngine(prefill_rate=PrefillRate(seconds_per_token=1e-3, num_tokens_per_step=512))
    async with (
        running_worker(DECODE_ROLE, engine) as decode,
        RouterSession(decode.address) as session,
    ):
        await session.generate(1, PROMPT[:num_cached], max_tokens=1)
        received = await session.generate(2, PROMPT, plan=plan)
        assert decode.sample("pagemesh:remote_prefills_total", outcome=outcome) == 1
    assert tuple(received.token_ids) == expected_tokens(PROMPT, 8)
    assert received.usage is not None
    assert received.usage.cached_token_count == num_cached
