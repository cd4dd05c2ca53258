"""Prompts go the way that the workers' numbers say, and the metrics tell what came of it."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.core.load import PrefillRate
from pagemesh.core.request import EngineRequest
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.sampling.params import SamplingParams
from pagemesh.v1 import inference_pb2, types_pb2
from tests.contract.fake_worker import FakeWorker
from tests.contract.measured_links import know_link, load_of
from tests.contract.router_harness import DEADLINE_S, Mesh, eventually, running_mesh
from tests.fakes.engine import expected_tokens

PROMPT = [10 + (7 * i) % 900 for i in range(300)]  # 18 full blocks of 512 bytes
RATE = PrefillRate(seconds_per_token=1e-3, num_tokens_per_step=512)
MUCH_SLOWER = RATE._replace(seconds_per_token=0.1)
FAST, SLOW = 1e9, 1e3
PATHS = ("local", "remote", "pull", "remote_pull")


def measured_mesh(**changes: Any) -> Any:
    """A mesh without a threshold, whose workers say how long prompts take."""
    settings = {"remote_prefill_min_tokens": None, "prefill_rate": RATE}
    return running_mesh(**{**settings, **changes})


def keep_busy(worker: FakeWorker, num_requests: int, num_tokens: int) -> None:
    """Have a worker's engine run requests of others."""
    for number in range(num_requests):
        sampling = SamplingParams(max_tokens=400, ignore_eos=True)
        prompt = tuple(range(20 + number, 20 + number + num_tokens))
        worker.engine.submit(EngineRequest(f"other-{number}", prompt, sampling))


async def know_holder(mesh: Mesh, worker_id: str) -> None:
    """Wait until the index knows that a worker holds all full blocks of the prompt."""
    deadline = time.monotonic() + DEADLINE_S
    while (await mesh.holders(PROMPT)).get(worker_id, 0) < 18:
        assert time.monotonic() < deadline, "the index never knew the prompt"
        await asyncio.sleep(0.01)


async def ask(mesh: Mesh, max_tokens: int = 4, prompt: list[int] = PROMPT) -> None:
    """Have a prompt answered, rightly."""
    request = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=prompt),
        sampling=types_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=1),
        use_seed=True,
    )
    tokens = [
        token_id
        async for response in mesh.inference.Generate(request, timeout=20)
        for token_id in response.token_ids
    ]
    assert tuple(tokens) == expected_tokens(prompt, max_tokens)


async def counted(mesh: Mesh, metric: str) -> dict[str, float]:
    """By path, where it is not 0."""
    found = {path: await mesh.metric(f'pagemesh:{metric}{{path="{path}"}}') for path in PATHS}
    return {path: value for path, value in found.items() if value}


async def went(mesh: Mesh) -> list[str]:
    """The ways that prompts took, which were those planned."""
    planned = await counted(mesh, "kv_path_plans_total")
    assert await counted(mesh, "kv_path_seconds_count") == planned
    return [path for path, times in planned.items() for _ in range(int(times))]


@pytest.mark.parametrize(("speed", "path"), [(FAST, "remote"), (SLOW, "local")])
async def test_the_speed_of_the_link_decides_between_remote_and_local(
    speed: float, path: str
) -> None:
    async with measured_mesh(prefill=1) as mesh:
        await know_link(mesh, "decode-0", "prefill-0", speed)
        await ask(mesh)
        assert await went(mesh) == [path]
        # A prompt of 300 tokens takes 0.3 s, and its KV over the slow link 9.6 s.
        predicted = await counted(mesh, "kv_path_predicted_seconds_sum")
        assert predicted == {path: pytest.approx(0.3, abs=0.01)}
        assert await mesh.metric("pagemesh:kv_path_regret_seconds_count") == 1


async def test_before_anything_was_measured_long_prompts_are_remote() -> None:
    async with running_mesh(prefill=1, remote_prefill_min_tokens=None) as mesh:
        await ask(mesh)
        assert await went(mesh) == ["remote"]
        assert await counted(mesh, "kv_path_predicted_seconds_count") == {}


async def test_the_operators_threshold_wins_over_what_was_measured() -> None:
    async with measured_mesh(prefill=1, remote_prefill_min_tokens=100) as mesh:
        await know_link(mesh, "decode-0", "prefill-0", SLOW)
        await ask(mesh)
        assert await went(mesh) == ["remote"]


async def test_a_queue_at_the_prefill_worker_makes_a_prompt_local() -> None:
    steps = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=4)
    async with measured_mesh() as mesh:
        prefill = await mesh.add(
            PREFILL_ROLE, "prefill-0", prefill_rate=RATE, scheduler=steps, seconds_per_token=0.05
        )
        await know_link(mesh, "decode-0", "prefill-0", FAST)
        # Four tokens in each 50 ms.
        keep_busy(prefill, 1, 400)
        await eventually(lambda: load_of(mesh, "prefill-0").pending_prefill_token_count > 300)
        await ask(mesh)
        assert await went(mesh) == ["local"]


async def test_decodes_that_run_make_a_local_prefill_dearer() -> None:
    async with measured_mesh(prefill=1, seconds_per_token=0.02, num_blocks=200) as mesh:
        # 0.3 s on either worker, and 0.2 s to get there.
        await know_link(mesh, "decode-0", "prefill-0", FAST, latency=0.2)
        await ask(mesh)
        assert await went(mesh) == ["local"]
        keep_busy(mesh.workers["decode-0"], 16, 20)

        def all_decode() -> bool:
            load = load_of(mesh, "decode-0")
            # A report may be of the moment between their admission and the step with their prompts: then the
            # worker finds no queue any more, and overrules the plan.
            return load.running_request_count == 16 and not load.pending_prefill_token_count

        await eventually(all_decode)
        await ask(mesh, prompt=PROMPT[::-1])
        assert await went(mesh) == ["local", "remote"]


async def test_no_more_than_two_requests_at_a_time_try_a_link_that_was_never_measured() -> None:
    async with measured_mesh() as mesh:
        quick = RATE._replace(seconds_per_token=1e-5)
        await mesh.add(PREFILL_ROLE, "prefill-0", prefill_rate=quick, seconds_per_token=0.3)
        await asyncio.gather(*(ask(mesh, prompt=PROMPT[n:]) for n in range(4)))
        assert sorted(await went(mesh)) == ["local", "local", "remote", "remote"]


async def mesh_with_holder(mesh: Mesh, **engine: Any) -> FakeWorker:
    """Have a first worker, whose context is too short for what follows, hold the prompt; adds another."""
    await mesh.add(DECODE_ROLE, "decode-short", max_model_len=310, prefill_rate=RATE)
    await ask(mesh)
    await know_holder(mesh, "decode-short")
    return await mesh.add(DECODE_ROLE, "decode-0", **engine)


@pytest.mark.parametrize(("speed", "path"), [(FAST, "pull"), (SLOW, "local")])
async def test_a_prompt_that_another_worker_holds_is_pulled_if_that_is_sooner(
    speed: float, path: str
) -> None:
    async with measured_mesh(decode=0) as mesh:
        decode = await mesh_with_holder(mesh, prefill_rate=RATE)
        await know_link(mesh, "decode-0", "decode-short", speed)
        await ask(mesh, max_tokens=20)
        assert sorted(await went(mesh)) == sorted(["local", path])
        pulled = decode.metric("pagemesh:kv_tokens_received_total")
        assert pulled == (288 if path == "pull" else 0)


async def test_a_prefill_worker_pulls_what_it_computes_sooner_than_the_decode_worker() -> None:
    async with measured_mesh(decode=0) as mesh:
        decode = await mesh_with_holder(mesh, prefill_rate=MUCH_SLOWER)
        prefill = await mesh.add(PREFILL_ROLE, "prefill-0", prefill_rate=RATE)
        await know_link(mesh, "decode-0", "prefill-0", FAST)
        await know_link(mesh, "prefill-0", "decode-short", FAST)
        await ask(mesh, max_tokens=20)
        assert await went(mesh) == ["local", "remote_pull"]
        assert prefill.metric("pagemesh:kv_tokens_received_total") == 288
        assert decode.metric("pagemesh:kv_tokens_received_total") == 300


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 1e308])
async def test_numbers_that_cannot_be_are_as_good_as_none(wrong: float) -> None:
    # So slow that the links' latencies, which the workers measure beside what the test tells them, do not count.
    async with measured_mesh(prefill=1, prefill_rate=MUCH_SLOWER) as mesh:
        odd = MUCH_SLOWER._replace(seconds_per_token=wrong)
        await mesh.add(DECODE_ROLE, "decode-odd", prefill_rate=odd)
        await know_link(mesh, "decode-0", "prefill-0", FAST, latency=wrong)
        await know_link(mesh, "decode-odd", "prefill-0", FAST)
        for start in range(4):
            await ask(mesh, prompt=PROMPT[start:])
            # Else what the worker said of itself meanwhile may still count, or come only now.
            await eventually(lambda: mesh.workers["prefill-0"].engine.load().is_idle)
            await know_link(mesh, "prefill-0", f"nobody-{start}", FAST)
        assert await counted(mesh, "kv_path_plans_total") == {"remote": 4}


async def test_a_plan_that_fails_is_counted_under_the_way_that_was_taken() -> None:
    async with measured_mesh(prefill=1) as mesh:
        await know_link(mesh, "decode-0", "prefill-0", FAST)
        await mesh.workers["prefill-0"].kill()
        await ask(mesh)
        assert await counted(mesh, "kv_path_plans_total") == {"remote": 1}
        assert await counted(mesh, "kv_path_seconds_count") == {"local": 1}
        overruled = 'pagemesh:kv_path_overruled_total{path="local",planned="remote"}'
        assert await mesh.metric(overruled) == 1


async def test_a_burst_of_prompts_does_not_go_to_one_prefill_worker() -> None:
    async with measured_mesh(prefill=2, seconds_per_token=0.05) as mesh:
        for prefill in ("prefill-0", "prefill-1"):
            await know_link(mesh, "decode-0", prefill, FAST)
        await asyncio.gather(*(ask(mesh, max_tokens=2, prompt=PROMPT[n:]) for n in range(6)))
        sent = [
            mesh.workers[f"prefill-{n}"].metric("pagemesh:kv_bytes_sent_total", rpc="prefill")
            for n in (0, 1)
        ]
        assert all(sent)
