"""A request of which workers die takes two of them along, and nobody else's answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from pagemesh.config import MigrationConfig
from pagemesh.core.engine import Pooling
from pagemesh.decode.service import DECODE_ROLE
from tests.contract.fake_worker import FakeWorker
from tests.contract.http_answers import Answer, http_body, read
from tests.contract.router_harness import Mesh, eventually, running_mesh

PROMPT = list(range(10, 80))
"""Four full blocks and six tokens."""

SLOW = 1.0
"""Seconds of a step: long enough to die in the first one."""

STALLED = 60.0


def ask(mesh: Mesh, **body: Any) -> asyncio.Task[Answer]:
    """A completion of four tokens."""
    asked = {"prompt": PROMPT, "max_tokens": 4, "temperature": 1, **body}
    return asyncio.create_task(read(mesh.openai.Completions(http_body(asked))))


def embed(mesh: Mesh) -> asyncio.Task[Answer]:
    asked = {"input": [PROMPT], "model": "demo"}
    return asyncio.create_task(read(mesh.openai.Embeddings(http_body(asked))))


def asked_of(mesh: Mesh) -> list[FakeWorker]:
    """Workers that were asked for something."""
    return [worker for worker in mesh.workers.values() if worker.engine.num_submitted]


async def end(victim: FakeWorker) -> None:
    """It dies, and its engine with it."""
    await victim.kill()
    victim.engine.runner.hurries.set()


async def end_next(mesh: Mesh, dead: list[FakeWorker]) -> None:
    """Whoever is asked next dies."""
    await eventually(lambda: len(asked_of(mesh)) > len(dead))
    (victim,) = [worker for worker in asked_of(mesh) if worker not in dead]
    dead.append(victim)
    await end(victim)


@asynccontextmanager
async def stalling_mesh(**settings: Any) -> AsyncIterator[Mesh]:
    """Its workers do not come to the end of a step."""
    async with running_mesh(seconds_per_token=STALLED, **settings) as mesh:
        try:
            yield mesh
        finally:
            for worker in mesh.workers.values():
                worker.engine.runner.hurries.set()


def error_of(answer: Answer) -> Any:
    """Of an answer that is one, or of the stream's last event but one."""
    if answer.content_type == "application/json":
        return answer.json()["error"]
    *_, last, end = answer.events()
    assert end == "[DONE]"
    return last["error"]


async def num_poison(mesh: Mesh, event: str) -> float:
    return await mesh.metric(f'pagemesh:poison_requests_total{{event="{event}"}}')


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("completions", {}),
        ("completions", {"n": 2}),
        ("completions", {"stream": True}),
        ("embeddings", {}),
    ],
)
async def test_it_ends_with_the_second_worker_and_is_refused_for_a_while(
    kind: str, body: dict[str, Any]
) -> None:
    pooling = Pooling("last", normalize=False)
    async with stalling_mesh(decode=4, pooling=pooling) as mesh:
        dead: list[FakeWorker] = []
        with capture_logs() as logs:
            asked = embed(mesh) if kind == "embeddings" else ask(mesh, **body)
            for _ in range(2):
                await end_next(mesh, dead)
            answer = await asked
        error = error_of(answer)
        assert error["code"] == "poison_request"
        assert error["message"] == (
            "2 workers died one after the other as they began to answer this request; it is refused for 300 s"
        )
        if not body.get("stream"):
            assert (answer.status, answer.headers["x-should-retry"]) == (500, "false")
        assert await num_poison(mesh, "ended") == 1
        (entry,) = [entry for entry in logs if entry["event"] == "poison request"]
        assert (entry["log_level"], entry["num_workers"]) == ("error", 2)
        assert asked_of(mesh) == [worker for worker in mesh.workers.values() if worker in dead]

        # Whoever asks the same again, for other draws too, costs nobody anything.
        again = await (embed(mesh) if kind == "embeddings" else ask(mesh, **body, seed=7))
        assert error_of(again)["message"].startswith(
            "workers died as they began to answer this request; it is refused for "
        )
        assert await num_poison(mesh, "refused") == 1
        assert await num_poison(mesh, "ended") == 1
        assert len(asked_of(mesh)) == 2

        # What is another request is answered.
        for worker in mesh.workers.values():
            worker.engine.runner.hurries.set()
        assert (await ask(mesh, prompt=PROMPT[1:])).status == 200


def num_generated(worker: FakeWorker) -> float:
    return worker.metric("vllm:generation_tokens_total", model_name="demo")


async def test_workers_that_die_under_an_answer_do_not_make_it_poison() -> None:
    async with running_mesh(decode=4, seconds_per_token=0.05) as mesh:
        asked = ask(mesh, max_tokens=40, seed=3, min_tokens=40)

        dead: list[FakeWorker] = []

        def has_answered() -> bool:
            return any(num_generated(worker) > 3 for worker in asked_of(mesh) if worker not in dead)

        for _ in range(3):
            await eventually(has_answered)
            await end_next(mesh, dead)
        answer = await asked
        assert answer.status == 200
        assert answer.json()["usage"]["completion_tokens"] == 40
        assert await mesh.num_migrated("lost") == 3


async def test_who_had_the_same_worker_is_kept_apart_and_answered() -> None:
    """With one prompt they would meet on one worker."""
    async with stalling_mesh() as mesh:
        first = mesh.workers["decode-0"]
        asked = [ask(mesh, max_tokens=4 + number) for number in range(2)]
        await eventually(lambda: first.engine.num_submitted == 2)
        second, third = [
            await mesh.add(DECODE_ROLE, f"decode-{number}", seconds_per_token=STALLED)
            for number in (1, 2)
        ]
        await end(first)
        await eventually(lambda: len(asked_of(mesh)) == 3)
        assert (second.engine.num_submitted, third.engine.num_submitted) == (1, 1)
        await end(second)
        third.engine.runner.hurries.set()
        answers = [await each for each in asked]
        assert sorted(answer.status for answer in answers) == [200, 500]
        assert await num_poison(mesh, "ended") == 1


async def test_suspects_wait_for_each_other_where_there_is_one_worker() -> None:
    async with stalling_mesh(migration=MigrationConfig(migration_timeout=0.5)) as mesh:
        first = mesh.workers["decode-0"]
        asked = [ask(mesh, max_tokens=1, prompt=[*PROMPT, number]) for number in range(10, 13)]
        await eventually(lambda: first.engine.num_submitted == 3)
        taker = await mesh.add(DECODE_ROLE, "decode-1", seconds_per_token=SLOW)
        await end(first)
        most_ahead = 0
        while not all(each.done() for each in asked):
            num_answered = sum(each.done() for each in asked)
            most_ahead = max(most_ahead, taker.engine.num_submitted - num_answered)
            await asyncio.sleep(0.01)
        # They waited for longer than for a worker when there is none, and never went together.
        assert [(await each).status for each in asked] == [200, 200, 200]
        assert most_ahead <= 2


async def test_with_a_limit_of_nought_there_is_no_poison() -> None:
    config = MigrationConfig(migration_limit=2, poison_limit=0)
    async with stalling_mesh(decode=4, migration=config) as mesh:
        asked, dead = ask(mesh), list[FakeWorker]()
        for _ in range(3):
            await end_next(mesh, dead)
        assert (await asked).json()["error"]["code"] == "worker_lost"
        assert await num_poison(mesh, "ended") == 0
