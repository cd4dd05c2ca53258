"""What ends a request: its client, its deadline, its worker, a full router."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
from google.api.httpbody_pb2 import HttpBody

from pagemesh.decode.service import DECODE_ROLE
from tests.contract.full_mesh import NUM_TAKEN, occupied, one_seat
from tests.contract.http_answers import http_body, read
from tests.contract.router_harness import Mesh, eventually, running_mesh

PROMPT = list(range(10, 50))


def slow(**fields: Any) -> HttpBody:
    return http_body({"prompt": PROMPT, "max_tokens": 400, "seed": 0, "stream": True, **fields})


def num_busy(mesh: Mesh) -> int:
    """Blocks that requests own, over all workers."""
    engines = [worker.engine for worker in mesh.workers.values()]
    return sum(engine.info.num_blocks - engine.num_free_blocks for engine in engines)


async def in_progress(mesh: Mesh) -> float:
    return await mesh.metric("pagemesh:requests_in_progress")


async def test_a_client_that_leaves_frees_the_worker() -> None:
    async with running_mesh(seconds_per_token=0.02) as mesh:
        call = mesh.openai.Completions(slow(n=2))
        await call.read()
        assert num_busy(mesh) > 0
        call.cancel()
        await eventually(lambda: num_busy(mesh) == 0)
        aborted = 'vllm:request_success_total{finished_reason="abort",model_name="demo"}'
        assert await mesh.metric(aborted) == 2
        assert await in_progress(mesh) == 0


async def test_a_client_that_leaves_before_the_first_token_frees_the_worker() -> None:
    async with running_mesh(prefill=1, seconds_per_token=0.3) as mesh:
        call = mesh.openai.Completions(slow(stream=False))
        await eventually(lambda: num_busy(mesh) > 0)
        call.cancel()
        await eventually(lambda: num_busy(mesh) == 0)


async def test_a_request_ends_at_its_deadline() -> None:
    async with running_mesh(seconds_per_token=0.02, request_timeout=0.3) as mesh:
        answer = await read(mesh.openai.Completions(slow(stream=False)))
        assert answer.status == 504
        assert answer.json()["error"]["code"] == "timeout"
        await eventually(lambda: num_busy(mesh) == 0)


async def test_the_callers_deadline_counts_too() -> None:
    async with running_mesh(seconds_per_token=0.02) as mesh:
        call = mesh.openai.Completions(slow(stream=False), timeout=0.3)
        try:
            await read(call)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: num_busy(mesh) == 0)


async def test_after_the_first_chunk_an_error_is_an_event() -> None:
    async with running_mesh(seconds_per_token=0.05, request_timeout=0.6) as mesh:
        answer = await read(mesh.openai.Completions(slow()))
        assert answer.status == 200
        events = answer.events()
        assert events[0]["object"] == "text_completion"
        assert events[-1]["error"]["code"] == "timeout"
        assert events[-1]["error"]["type"] == "server_error"


async def test_a_full_router_refuses_at_once() -> None:
    async with one_seat(max_waiting_requests=1) as mesh:
        async with occupied(mesh, NUM_TAKEN + 1):
            refused = await mesh.completions({"prompt": PROMPT})
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert "1 requests waiting" in refused.json()["error"]["message"]
        await eventually(lambda: num_busy(mesh) == 0)
        assert (await mesh.completions({"prompt": PROMPT})).status == 200


async def test_a_worker_lost_before_the_first_token_costs_only_time() -> None:
    async with running_mesh(decode=2, seconds_per_token=0.3) as mesh:
        call = asyncio.create_task(
            mesh.completions({"prompt": PROMPT, "max_tokens": 3, "seed": 0, "stream": False})
        )
        await eventually(lambda: num_busy(mesh) > 0)
        busy = next(w for w in mesh.workers.values() if w.engine.num_free_blocks < 64)
        await busy.kill()
        answer = await call
        assert answer.status == 200
        assert await mesh.num_migrated("lost") == 1
        assert answer.json()["usage"]["completion_tokens"] == 3


async def test_a_worker_that_leaves_in_order_finishes_its_requests() -> None:
    async with running_mesh(decode=0) as mesh:
        await mesh.add(DECODE_ROLE, "decode-0", seconds_per_token=0.005, grace_period=10.0)
        call = asyncio.create_task(
            mesh.completions({"prompt": PROMPT, "max_tokens": 20, "seed": 0})
        )
        await eventually(lambda: num_busy(mesh) > 0)
        await mesh.remove("decode-0")
        answer = await call
        assert answer.json()["usage"]["completion_tokens"] == 20
        deadline = time.monotonic() + 10
        while (await mesh.health())["status"] == "ok":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
