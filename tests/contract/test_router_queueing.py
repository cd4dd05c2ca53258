"""Requests that wait in the router because the workers are full: who goes first, and what ends the wait."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import pytest

from pagemesh.config import SchedulerConfig, TenantsConfig
from pagemesh.core.engine import Pooling
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.v1 import openai_pb2_grpc
from tests.contract.full_mesh import NUM_TAKEN, await_queue, num_queued, occupied, one_seat
from tests.contract.http_answers import Answer, http_body, pairs, read
from tests.contract.router_harness import Mesh, eventually, running_mesh
from tests.contract.tenant_keys import ACME, OTHER, bearer, error_of, key_file, refusals

PROMPT = list(range(10, 26))
SHORT = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True}


@pytest.fixture
def tenants(tmp_path: Path) -> TenantsConfig:
    keys = tmp_path / "keys.yaml"
    key_file(keys, acme={}, other={})
    return TenantsConfig(api_key_file=str(keys))


def is_idle(mesh: Mesh) -> bool:
    return all(w.engine.num_free_blocks == w.engine.info.num_blocks for w in mesh.workers.values())


async def test_a_heavy_tenant_slows_itself_alone(tenants: TenantsConfig) -> None:
    scheduler = SchedulerConfig(max_num_seqs=4)
    async with running_mesh(
        tenants=tenants,
        scheduler=scheduler,
        # None ends before all are there, however busy the machine.
        seconds_per_token=2.0,
        max_waiting_requests=400,
        # On busy cores, the queue is long against the default.
        request_timeout=200.0,
    ) as mesh:
        num_ended = 0

        async def run(key: str) -> int:
            """Requests of the heavy tenant that ended while this one waited and ran."""
            nonlocal num_ended
            before = num_ended
            answer = await mesh.completions(SHORT, **bearer(key))
            assert answer.status == 200, answer.data
            num_ended += key == ACME
            return num_ended - before

        heavy = [asyncio.create_task(run(ACME)) for _ in range(200)]
        await eventually(lambda: num_queued(mesh) > 150)
        for worker in mesh.workers.values():
            worker.engine.runner.pace = 0.03
        beside = [await run(OTHER) for _ in range(5)]
        assert num_queued(mesh) > 60
        waits = await asyncio.gather(*heavy)
        # One waits for the next seat that becomes free, behind those that a worker was sent already.
        assert max(beside) <= 24
        assert max(waits) > 150
        registry = mesh.router._metrics.registry
        name, labels = "vllm:request_queue_time_seconds", {"model_name": "demo", "engine": "0"}
        assert registry.get_sample_value(f"{name}_count", labels) == 205
        assert (registry.get_sample_value(f"{name}_sum", labels) or 0) > 1


async def test_who_waits_is_counted_as_waiting() -> None:
    async with one_seat() as mesh, occupied(mesh, NUM_TAKEN + 2):
        assert await mesh.metric('pagemesh:requests_queued{model_name="demo"}') == 2
        # Those that the worker has and cannot begin with count, too, when it has said so.
        waiting = 'vllm:num_requests_waiting{model_name="demo"}'
        deadline = time.monotonic() + 5
        while await mesh.metric(waiting) != NUM_TAKEN - 1 + 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


async def test_what_is_more_urgent_goes_first() -> None:
    async with one_seat() as mesh:
        ended: list[int] = []

        async def run(priority: int) -> None:
            answer = await mesh.completions({**SHORT, "priority": priority})
            assert answer.status == 200
            ended.append(priority)

        async with occupied(mesh, NUM_TAKEN):
            waiting = []
            for number, priority in enumerate((5, 0, -3, 1), 1):
                waiting.append(asyncio.create_task(run(priority)))
                await await_queue(mesh, number)
        await asyncio.gather(*waiting)
        assert ended == [-3, 0, 1, 5]


async def test_another_tenants_priority_is_no_way_to_the_front(tenants: TenantsConfig) -> None:
    async with one_seat(tenants=tenants) as mesh:
        ended: list[str] = []

        async def run(key: str, priority: int) -> None:
            answer = await mesh.completions({**SHORT, "priority": priority}, **bearer(key))
            assert answer.status == 200
            ended.append(key)

        async with occupied(mesh, NUM_TAKEN, **bearer(ACME)):
            waiting = [asyncio.create_task(run(ACME, -100)) for _ in range(6)]
            await await_queue(mesh, 6)
            waiting.append(asyncio.create_task(run(OTHER, 0)))
            await await_queue(mesh, 7)
        await asyncio.gather(*waiting)
        assert OTHER in ended[:2]


async def test_a_full_queue_refuses_the_tenant_that_fills_it(tenants: TenantsConfig) -> None:
    async with one_seat(tenants=tenants, max_waiting_requests=10) as mesh:
        async with occupied(mesh, NUM_TAKEN + 8, **bearer(ACME)):
            refused = await mesh.completions(SHORT, **bearer(ACME))
            assert refused.status == 429
            assert error_of(refused)["code"] == "rate_limit_exceeded"
            assert "8 of them of 'acme'" in error_of(refused)["message"]
            other = asyncio.create_task(mesh.completions(SHORT, **bearer(OTHER)))
            await await_queue(mesh, 9)
        assert (await other).status == 200
        assert refusals(mesh, "queue_full") == 1


async def test_who_comes_back_when_it_was_told_to_is_served() -> None:
    """Requests of half a second, one at a time, and more of them than there are places."""
    body = {"prompt": PROMPT, "max_tokens": 25, "ignore_eos": True}
    async with one_seat(max_waiting_requests=4) as mesh:

        async def patient() -> list[Answer]:
            answers = [await mesh.completions(body)]
            while answers[-1].status == 429:
                await asyncio.sleep(int(answers[-1].headers["retry-after"]))
                answers.append(await mesh.completions(body))
            return answers

        first = [asyncio.create_task(patient()) for _ in range(NUM_TAKEN + 4)]
        await await_queue(mesh, 4)
        began = time.monotonic()
        # From now on, it is known how fast they go.
        await await_queue(mesh, 1)
        each = (time.monotonic() - began) / 3
        more = [asyncio.create_task(patient()) for _ in range(3)]
        await await_queue(mesh, 4)
        late = await mesh.completions(body)
        assert late.status == 429
        # Four wait, for half a second each, or as long as this machine takes now.
        assert 1 <= int(late.headers["retry-after"]) <= 1 + 2 * 4 * each
        await asyncio.sleep(int(late.headers["retry-after"]))
        assert (await mesh.completions(body)).status == 200
        for answers in await asyncio.gather(*first, *more):
            assert answers[-1].status == 200


async def test_a_client_that_leaves_the_queue_frees_its_place() -> None:
    async with one_seat(max_waiting_requests=2) as mesh, occupied(mesh, NUM_TAKEN + 1):
        for stream in (True, False):
            call = mesh.openai.Completions(http_body({**SHORT, "stream": stream}))
            await await_queue(mesh, 2)
            call.cancel()
            await await_queue(mesh, 1)
        assert await mesh.metric("pagemesh:requests_in_progress") == NUM_TAKEN + 1


async def test_a_router_that_stops_tells_who_waits() -> None:
    async with one_seat(grace_period=1.0) as mesh, occupied(mesh, NUM_TAKEN):
        call = asyncio.create_task(mesh.completions(SHORT))
        await await_queue(mesh, 1)
        await mesh.router.close()
        answer = await call
        assert (answer.status, error_of(answer)["code"]) == (503, "draining")


async def test_who_waits_for_a_worker_that_is_gone_is_told_so_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pagemesh.router.dispatch.dispatch.NOBODY_S", 0.5)
    async with one_seat() as mesh:
        calls = [
            asyncio.create_task(mesh.completions(SHORT | {"max_tokens": 300})) for _ in range(5)
        ]
        await eventually(lambda: num_queued(mesh) == 5 - NUM_TAKEN)
        await mesh.remove("decode-0")
        # Those that the worker had wait longer: somebody may go on with them.
        ended, running = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        while len(ended) < 5 - NUM_TAKEN:
            more, running = await asyncio.wait(
                running, return_when=asyncio.FIRST_COMPLETED, timeout=5
            )
            assert more
            ended |= more
        answers = [call.result() for call in ended]
        assert {(a.status, error_of(a)["code"]) for a in answers} == {(503, "no_worker")}
        for call in running:
            call.cancel()


async def test_who_waits_goes_to_a_worker_that_comes(tenants: TenantsConfig) -> None:
    async with one_seat() as mesh, occupied(mesh, NUM_TAKEN):
        call = asyncio.create_task(mesh.completions(SHORT))
        await await_queue(mesh, 1)
        await mesh.add(DECODE_ROLE, "decode-1")
        assert (await call).status == 200


async def test_embeddings_wait_likewise() -> None:
    async with one_seat(pooling=Pooling("mean", normalize=True)) as mesh:
        async with occupied(mesh, NUM_TAKEN):
            asked = http_body({"input": [PROMPT, PROMPT]})
            call = asyncio.create_task(read(mesh.openai.Embeddings(asked)))
            await await_queue(mesh, 1)
            late = mesh.openai.Embeddings(asked, metadata=pairs({"x-request-timeout": "0.2"}))
            assert (await read(late)).status == 504
            gone = mesh.openai.Embeddings(asked)
            await await_queue(mesh, 2)
            gone.cancel()
            await await_queue(mesh, 1)
        answer = await call
        assert (answer.status, len(answer.json()["data"])) == (200, 2)
        assert (await read(mesh.openai.Embeddings(asked))).status == 200


async def test_a_slow_reader_takes_no_seat() -> None:
    """Its worker is done with it long before it has read everything."""
    body = http_body({**SHORT, "max_tokens": 450, "logprobs": 20, "stream": True})
    # As little is under way to it as can be.
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096)]
    async with (
        one_seat(seconds_per_token=0.0) as mesh,
        grpc.aio.insecure_channel(mesh.address, options=options) as channel,
    ):
        stub: openai_pb2_grpc.OpenAIAsyncStub = openai_pb2_grpc.OpenAIStub(channel)
        slow = [stub.Completions(body) for _ in range(NUM_TAKEN + 2)]
        for call in slow:
            await call.read()
        await eventually(lambda: is_idle(mesh) and num_queued(mesh) == 0)
        assert await mesh.metric("pagemesh:requests_in_progress") == len(slow)
        assert (await mesh.completions(SHORT)).status == 200
        for call in slow:
            call.cancel()
