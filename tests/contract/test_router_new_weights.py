"""Another model comes to be served under the name of one that is gone: it goes on with nothing of that one's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pagemesh.config import MigrationConfig, SchedulerConfig
from pagemesh.core.engine import Pooling
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.router.session import WorkerSession
from tests.contract.fake_worker import FakeWorker
from tests.contract.http_answers import Answer, http_body, read
from tests.contract.router_harness import Mesh, eventually, running_mesh
from tests.contract.scripted_worker import scripted

PROMPT = list(range(10, 80))
PACE = 0.01
PATIENCE = MigrationConfig(migration_timeout=1.0)
"""Within which the new worker is there, and could take what it must not."""

ONE_AT_A_TIME = SchedulerConfig(max_num_seqs=1)


async def replace(mesh: Mesh, fingerprint: str, **engine: Any) -> FakeWorker:
    """The only worker dies; one that runs this model takes its place."""
    await mesh.workers["decode-0"].kill()
    await mesh.remove("decode-0")
    return await mesh.add(DECODE_ROLE, "decode-1", fingerprint=fingerprint, **engine)


async def complete(mesh: Mesh, **body: Any) -> Answer:
    return await mesh.completions({"prompt": PROMPT, "max_tokens": 4, "seed": 3, **body})


def is_answering(mesh: Mesh, num_tokens: int) -> bool:
    """Whether the first worker has made so many tokens."""
    name = "vllm:generation_tokens_total"
    return mesh.workers["decode-0"].metric(name, model_name="demo") >= num_tokens


@pytest.mark.parametrize("body", [{}, {"n": 3}, {"stream": False}], ids=["one", "three", "whole"])
async def test_an_answer_ends_with_the_model_that_made_its_tokens(body: dict[str, Any]) -> None:
    async with running_mesh(seconds_per_token=PACE, migration=PATIENCE) as mesh:
        asked = {"prompt": PROMPT, "max_tokens": 300, "stream": True, **body}
        reading = asyncio.create_task(read(mesh.openai.Completions(http_body(asked))))
        await eventually(lambda: is_answering(mesh, 10))
        new = await replace(mesh, "new")
        answer = await reading
        events = answer.events() if asked["stream"] else [answer.json()]
        assert events[-1]["error"]["code"] == "worker_lost"
        assert new.metric("vllm:generation_tokens_total", model_name="demo") == 0
        assert await mesh.num_migrated("lost") == 0
        # What begins now is answered.
        assert (await complete(mesh)).status == 200


async def test_an_answer_goes_on_with_the_model_that_made_its_tokens() -> None:
    async with running_mesh(seconds_per_token=PACE, migration=PATIENCE) as mesh:
        expected = (await complete(mesh, max_tokens=60)).json()["choices"]
        reading = asyncio.create_task(complete(mesh, max_tokens=60))
        await eventually(lambda: is_answering(mesh, 70))
        await replace(mesh, "fake")
        assert (await reading).json()["choices"] == expected
        assert await mesh.num_migrated("lost") == 1


async def test_what_nobody_has_begun_to_answer_is_answered_by_the_new_model() -> None:
    async with running_mesh(seconds_per_token=0.5) as mesh:
        reading = asyncio.create_task(complete(mesh))
        worker = mesh.workers["decode-0"]
        await eventually(lambda: worker.engine.load().num_running > 0)
        await replace(mesh, "new")
        assert (await reading).status == 200


def num_computed(mesh: Mesh) -> float:
    """Prompts of three tokens that the first worker has computed."""
    worker = mesh.workers["decode-0"]
    return worker.metric("vllm:prompt_tokens_total", model_name="demo") / 3


@pytest.mark.parametrize("kind", ["completions", "embeddings"])
async def test_one_model_answers_all_prompts_of_a_request(kind: str) -> None:
    pooling = Pooling("last", normalize=False)
    settings: dict[str, Any] = {
        "scheduler": ONE_AT_A_TIME,
        "seconds_per_token": 0.2,
        "pooling": pooling,
    }
    async with running_mesh(migration=PATIENCE, **settings) as mesh:
        prompts = [[20 + index] * 3 for index in range(6)]
        if kind == "completions":
            call = mesh.openai.Completions(http_body({"prompt": prompts, "max_tokens": 1}))
        else:
            call = mesh.openai.Embeddings(http_body({"input": prompts, "model": "demo"}))
        reading = asyncio.create_task(read(call))
        await eventually(lambda: num_computed(mesh) >= 2)
        new = await replace(mesh, "new", **settings)
        answer = await reading
        assert (answer.status, answer.json()["error"]["code"]) == (503, "worker_lost")
        assert new.engine.load().num_running == 0


async def test_nothing_is_sent_to_another_model_at_a_workers_address() -> None:
    async with running_mesh(decode=0) as mesh, scripted(mesh) as worker:
        worker.fingerprint = "new"
        session = WorkerSession(worker.info)
        session.start()
        try:
            await eventually(lambda: bool(session.last_end))
            assert "another model" in session.last_end
            assert not session.is_live
            # It is there again: the session tries, and finds it.
            worker.fingerprint = "fake"
            await eventually(lambda: session.is_live)
        finally:
            await session.close()
