"""A decode worker goes: what it had begun goes on elsewhere, and clients notice a pause at most."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from pagemesh.config import MigrationConfig
from pagemesh.core.load import PrefillRate
from pagemesh.decode.service import DECODE_ROLE
from tests.contract.fake_worker import FakeWorker
from tests.contract.http_answers import Answer, http_body, nothing, read
from tests.contract.router_harness import Mesh, eventually, running_mesh

PROMPT = list(range(10, 80))
"""Four full blocks and six tokens."""

PACE = 0.01
SLOW_PREFILL = PrefillRate(0.1, 0.0, 0.0, 512, 1.0)
"""So slow that KV which is somewhere is always sooner fetched than computed."""
LONG_GRACE_S = 4.0
"""Half of it is time for whoever takes requests over to fetch their KV, also on a busy machine."""


def busy(mesh: Mesh) -> FakeWorker:
    """The worker that runs something."""
    return next(w for w in mesh.workers.values() if w.engine.load().num_running)


def is_idle(worker: FakeWorker) -> bool:
    return worker.engine.load().num_running == 0


def num_generated(mesh: Mesh) -> float:
    """Tokens that all workers made."""
    name = "vllm:generation_tokens_total"
    return sum(worker.metric(name, model_name="demo") for worker in mesh.workers.values())


def has_generated(mesh: Mesh, num_tokens: float) -> bool:
    return num_generated(mesh) >= num_tokens and any(
        worker.engine.load().num_running for worker in mesh.workers.values()
    )


async def kill(mesh: Mesh) -> None:
    await busy(mesh).kill()


async def ask(
    mesh: Mesh,
    body: dict[str, Any],
    disturb: Callable[[], Awaitable[None]] = nothing,
    num_chunks: int = 5,
) -> Answer:
    """A streamed completion, disturbed behind its first chunks."""
    body = {"prompt": PROMPT, "max_tokens": 40, "seed": 3, **body, "stream": True}
    body["stream_options"] = {"include_usage": True}
    return await read(mesh.openai.Completions(http_body(body)), disturb, num_chunks)


def told(answer: Answer) -> tuple[dict[int, list[Any]], Any]:
    """By choice, its text and ids, what was said of each token, and why it ended; and the usage."""
    *chunks, end = answer.events()
    assert end == "[DONE]"
    choices: dict[int, list[Any]] = {}
    usage = None
    for chunk in chunks:
        assert "error" not in chunk, chunk
        usage = chunk["usage"] or usage
        for choice in chunk["choices"]:
            said = choices.setdefault(choice["index"], ["", [], [], None])
            said[0] += choice["text"]
            if choice["logprobs"] is not None:
                said[1] += choice["logprobs"]["tokens"]
                said[2] += choice["logprobs"]["token_logprobs"]
            assert said[3] is None, "something follows the end"
            said[3] = choice["finish_reason"]
    return choices, usage


@pytest.mark.parametrize("prefill", [0, 1], ids=["aggregated", "disaggregated"])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"n": 3, "temperature": 1},
        {"logprobs": 2},
        {"min_tokens": 39, "stop_token_ids": list(range(10, 900))},
    ],
    ids=["plain", "several answers", "logprobs", "min_tokens"],
)
async def test_a_stream_whose_worker_dies_goes_on_as_if_nothing_had_happened(
    body: dict[str, Any], prefill: int
) -> None:
    async with running_mesh(decode=2, prefill=prefill, seconds_per_token=PACE) as mesh:
        disturbed = await ask(mesh, body, lambda: kill(mesh))
        assert await mesh.num_migrated("lost") == body.get("n", 1)
        pauses = await mesh.metric("pagemesh:migration_pause_seconds_count")
        assert pauses == body.get("n", 1)
        usage = told(disturbed)[1]
        choices = told(await ask(mesh, body))[0]
        assert told(disturbed)[0] == choices
        assert usage["completion_tokens"] == 40 * len(choices)
        assert usage["prompt_tokens"] == len(PROMPT)
        success = 'vllm:request_success_total{finished_reason="error",model_name="demo"}'
        assert await mesh.metric(success) == 0


async def test_an_answer_that_is_not_streamed_goes_on_and_tells_of_its_prompt_once() -> None:
    async with running_mesh(decode=2, seconds_per_token=PACE) as mesh:
        body = {"prompt": PROMPT, "max_tokens": 40, "seed": 3, "prompt_logprobs": 1, "logprobs": 1}
        expected = (await mesh.completions(body)).json()["choices"]
        num_made = num_generated(mesh)
        call = asyncio.create_task(mesh.completions(body))
        await eventually(lambda: num_generated(mesh) > num_made + 5)
        await kill(mesh)
        assert (await call).json()["choices"] == expected
        assert len(expected[0]["prompt_logprobs"]) == len(PROMPT)
        assert await mesh.num_migrated("lost") == 1


async def test_a_stop_string_is_found_across_the_loss() -> None:
    async with running_mesh(decode=2, seconds_per_token=PACE) as mesh:
        text = told(await ask(mesh, {}))[0][0][0]
        stop = {"stop": [text[6:26]]}
        expected = told(await ask(mesh, stop))
        assert expected[0][0][0] == text[:6]
        disturbed = told(await ask(mesh, stop, lambda: kill(mesh), num_chunks=3))
        assert disturbed[0] == expected[0]
        assert disturbed[1]["completion_tokens"] == expected[1]["completion_tokens"]


async def test_cached_tokens_are_those_of_the_first_worker() -> None:
    async with running_mesh(decode=2, seconds_per_token=PACE) as mesh:
        await ask(mesh, {"max_tokens": 1}, num_chunks=1)
        disturbed = await ask(mesh, {}, lambda: kill(mesh))
        # The one that goes on has computed all of it.
        assert told(disturbed)[1]["prompt_tokens_details"]["cached_tokens"] == 64


async def test_the_only_worker_may_come_back_in_time() -> None:
    async with running_mesh(seconds_per_token=PACE) as mesh:
        expected = told(await ask(mesh, {}))

        async def replace() -> None:
            await kill(mesh)
            await mesh.remove("decode-0")
            await mesh.add(DECODE_ROLE, "decode-1", seconds_per_token=PACE)

        disturbed = await ask(mesh, {}, replace)
        assert told(disturbed)[0] == expected[0]


async def test_a_client_that_waits_for_a_worker_is_told_that_its_request_is_alive() -> None:
    async with running_mesh(seconds_per_token=PACE) as mesh:
        call = mesh.openai.Completions(
            http_body({"prompt": PROMPT, "stream": True, "max_tokens": 40})
        )
        chunks = aiter(call)
        await anext(chunks)
        await kill(mesh)
        while b": keepalive" not in (await anext(chunks)).data:
            pass
        call.cancel()
        await eventually(lambda: mesh.workers["decode-0"].engine.num_free_blocks == 64)


@pytest.mark.parametrize("has_tokens", [False, True], ids=["before tokens", "behind tokens"])
async def test_nobody_to_go_on_is_reported_as_the_loss_that_it_is(has_tokens: bool) -> None:
    patience = MigrationConfig(migration_timeout=0.2)
    pace = PACE if has_tokens else 0.3
    async with running_mesh(seconds_per_token=pace, migration=patience) as mesh:
        call = mesh.openai.Completions(
            http_body({"prompt": PROMPT, "stream": has_tokens, "max_tokens": 40})
        )

        async def kill_when_busy() -> None:
            await eventually(lambda: mesh.workers["decode-0"].engine.load().num_running > 0)
            await kill(mesh)

        answer = await read(call, kill_when_busy, int(has_tokens))
        error = answer.events()[-1]["error"] if has_tokens else answer.json()["error"]
        assert error["code"] == "worker_lost"
        assert "worker decode-0 went away" in error["message"]
        assert has_tokens or answer.status == 503
        failed = 'vllm:request_success_total{finished_reason="error",model_name="demo"}'
        assert await mesh.metric(failed) == 1


async def test_a_request_under_which_workers_die_takes_only_so_many_along() -> None:
    limit = MigrationConfig(migration_limit=2)
    async with running_mesh(decode=4, seconds_per_token=PACE, migration=limit) as mesh:
        call = mesh.openai.Completions(http_body({"prompt": PROMPT, "max_tokens": 400}))
        reading = asyncio.create_task(read(call))
        for _ in range(3):
            num_made = num_generated(mesh)
            await eventually(partial(has_generated, mesh, num_made + 2))
            victim = busy(mesh)
            await victim.kill()
            await eventually(partial(is_idle, victim))
        answer = await reading
        assert (answer.status, answer.json()["error"]["code"]) == (503, "worker_lost")
        assert await mesh.num_migrated("lost") == 2


async def test_a_worker_that_stops_hands_over_what_it_cannot_finish_with_its_kv() -> None:
    async with running_mesh(decode=0, remote_prefill_min_tokens=None) as mesh:
        for worker_id in ("decode-0", "decode-1"):
            await mesh.add(
                DECODE_ROLE,
                worker_id,
                grace_period=LONG_GRACE_S,
                seconds_per_token=PACE,
                prefill_rate=SLOW_PREFILL,
            )
        leaving = ""

        async def stop() -> None:
            nonlocal leaving
            worker = busy(mesh)
            leaving = worker.worker_id
            # 35 tokens are left, for which the worker has half of its grace period.
            worker.engine.runner.pace = LONG_GRACE_S / 40
            await mesh.remove(leaving)

        disturbed = told(await ask(mesh, {"n": 2, "logprobs": 1}, stop))[0]
        assert await mesh.num_migrated("drain") == 2
        assert await mesh.num_migrated("lost") == 0
        (taker,) = mesh.workers.values()
        assert taker.worker_id != leaving
        assert taker.metric("pagemesh:kv_pulls_total", path="pull", outcome="complete") >= 1
        # Four blocks of the prompt, and what it fills with the answer until then.
        assert taker.metric("pagemesh:kv_tokens_received_total") >= 80
        assert told(await ask(mesh, {"n": 2, "logprobs": 1}))[0] == disturbed


async def test_a_worker_whose_requests_are_over_stops_at_once() -> None:
    async with running_mesh(decode=2, seconds_per_token=PACE) as mesh:
        await ask(mesh, {})
        loop = asyncio.get_running_loop()
        for worker in list(mesh.workers):
            began_at = loop.time()
            await mesh.remove(worker)
            assert loop.time() - began_at < 5
