"""Prompts go the way that the workers' numbers say, and the metrics tell what came of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pagemesh.decode.service import DECODE_ROLE
from pagemesh.engine.prefill_rate import PrefillRate
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.v1 import inference_pb2, types_pb2
from tests.contract.fake_worker import FakeWorker
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


async def know_link(mesh: Mesh, receiver: str, sender: str, bytes_per_second: float) -> None:
    """Have a worker measure a link, and wait until the router has heard of it."""
    worker = mesh.workers[receiver]
    worker.links.learn(sender, 0.001, 1_000_000, 1_000_000 / bytes_per_second)

    def is_known() -> bool:
        workers = {w.worker_id: w for w in mesh.router._directory.workers()}
        return any(link.worker_id == sender for link in workers[receiver].load.links)

    await eventually(is_known)


async def know_holder(mesh: Mesh, worker_id: str) -> None:
    """Wait until the index knows that a worker holds all full blocks of the prompt."""
    deadline = time.monotonic() + DEADLINE_S
    while (await mesh.holders(PROMPT)).get(worker_id, 0) < 18:
        assert time.monotonic() < deadline, "the index never knew the prompt"
        await asyncio.sleep(0.01)


async def ask(mesh: Mesh, max_tokens: int = 4) -> None:
    """Have the prompt answered, rightly."""
    request = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=PROMPT),
        sampling=types_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=1),
        use_seed=True,
    )
    tokens = [
        token_id
        async for response in mesh.inference.Generate(request, timeout=20)
        for token_id in response.token_ids
    ]
    assert tuple(tokens) == expected_tokens(PROMPT, max_tokens)


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


async def test_a_plan_that_fails_is_counted_under_the_way_that_was_taken() -> None:
    async with measured_mesh(prefill=1) as mesh:
        await know_link(mesh, "decode-0", "prefill-0", FAST)
        await mesh.workers["prefill-0"].kill()
        await ask(mesh)
        assert await counted(mesh, "kv_path_plans_total") == {"remote": 1}
        assert await counted(mesh, "kv_path_seconds_count") == {"local": 1}
        overruled = 'pagemesh:kv_path_overruled_total{path="local",planned="remote"}'
        assert await mesh.metric(overruled) == 1


async def test_a_burst_does_not_go_to_one_prefill_worker() -> None:
    async with measured_mesh(prefill=2, seconds_per_token=0.05) as mesh:
        for prefill in ("prefill-0", "prefill-1"):
            await know_link(mesh, "decode-0", prefill, FAST)
        await asyncio.gather(*(ask(mesh, max_tokens=2) for _ in range(6)))
        sent = [
            mesh.workers[f"prefill-{n}"].metric("pagemesh:kv_bytes_sent_total", rpc="prefill")
            for n in (0, 1)
        ]
        assert all(sent)
