"""What a router's clients are told when it stops before their answers are complete."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.contract.http_answers import http_body, read
from tests.contract.router_harness import eventually, running_mesh

REQUEST = {"prompt": list(range(10, 50)), "max_tokens": 400, "seed": 0}
NUM_ANSWERS = 32


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_cut_by_the_routers_stop_ends_with_an_error(stream: bool) -> None:
    async with running_mesh(seconds_per_token=0.05, grace_period=1.0) as mesh:
        call = mesh.openai.Completions(http_body({**REQUEST, "stream": stream}))
        answer = asyncio.create_task(read(call))
        engine = mesh.workers["decode-0"].engine
        await eventually(lambda: engine.num_free_blocks < engine.info.num_blocks)
        await mesh.router.close()
        got = await answer
        if stream:
            assert got.status == 200
            error = got.events()[-1]["error"]
        else:
            assert got.status == 503
            error = got.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "draining")
        assert error["message"] == "the router is stopping"


async def test_a_router_that_gets_no_processor_as_it_stops_tells_so_all_the_same() -> None:
    async with running_mesh(seconds_per_token=0.05, grace_period=1.0) as mesh:
        body = http_body({**REQUEST, "prompt": [10], "max_tokens": 200, "stream": True})
        begun = asyncio.Barrier(NUM_ANSWERS + 1)
        answers = [
            asyncio.create_task(read(mesh.openai.Completions(body), begun.wait, 1))
            for _ in range(NUM_ANSWERS)
        ]
        async with asyncio.timeout(20):
            await begun.wait()
        stopping = asyncio.create_task(mesh.router.close())
        await asyncio.sleep(0.2)
        # Until long after the grace period: nothing of the router runs meanwhile.
        time.sleep(1.5)  # noqa: ASYNC251
        await stopping
        for answer in await asyncio.gather(*answers):
            assert answer.events()[-1]["error"]["message"] == "the router is stopping"


async def test_an_answer_that_ends_within_the_grace_period_is_complete() -> None:
    async with running_mesh(seconds_per_token=0.01, grace_period=10.0) as mesh:
        call = mesh.openai.Completions(http_body({**REQUEST, "max_tokens": 5, "stream": True}))
        answer = asyncio.create_task(read(call))
        engine = mesh.workers["decode-0"].engine
        await eventually(lambda: engine.num_free_blocks < engine.info.num_blocks)
        await mesh.router.close()
        assert (await answer).events()[-1] == "[DONE]"
