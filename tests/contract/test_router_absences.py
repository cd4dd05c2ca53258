"""Workers that seem to be gone and are not: the kvstore has lost them, or nothing is heard of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from pagemesh.v1 import types_pb2
from tests.contract.http_answers import Answer, http_body, read
from tests.contract.router_harness import DEADLINE_S, Mesh, eventually, running_mesh
from tests.contract.scripted_worker import ScriptedDecode, scripted
from tests.support.link.relay import Relay

BODY = http_body({"prompt": list(range(10, 50)), "max_tokens": 9})


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh(decode=0) as mesh:
        yield mesh


def ask(mesh: Mesh) -> asyncio.Task[Answer]:
    return asyncio.create_task(read(mesh.openai.Completions(BODY)))


async def answer(worker: ScriptedDecode) -> None:
    """Answer what was asked last."""
    await eventually(lambda: bool(worker.submits))
    worker.answer(worker.submits[-1], token_ids=[20], finish_reason=types_pb2.FINISH_REASON_LENGTH)


async def await_workers(mesh: Mesh, num_workers: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (await mesh.health())["decode_workers"] != num_workers:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_worker_that_the_kvstore_lost_is_waited_for(mesh: Mesh) -> None:
    async with scripted(mesh) as worker:
        first = ask(mesh)
        await answer(worker)
        assert (await first).status == 200
        await worker.publisher.close()
        await await_workers(mesh, 0)
        waiting = ask(mesh)
        await asyncio.sleep(0.2)
        assert not waiting.done()
        worker.publisher.start()
        await eventually(lambda: len(worker.submits) == 2)
        await answer(worker)
        assert (await waiting).status == 200


async def test_a_worker_that_does_not_come_back_is_not_waited_for_any_more(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagemesh.router.dispatch.dispatch.NOBODY_S", 0.5)
    async with scripted(mesh) as worker:
        first = ask(mesh)
        await answer(worker)
        assert (await first).status == 200
    await await_workers(mesh, 0)
    refused = await ask(mesh)
    assert (refused.status, refused.json()["error"]["code"]) == (503, "no_worker")
    # Whoever knew nobody at first, and nobody since, does not wait at all.
    monkeypatch.setattr("pagemesh.router.session_pool.EXPECTED_S", 0.0)
    monkeypatch.setattr("pagemesh.router.dispatch.dispatch.NOBODY_S", 60.0)
    assert (await asyncio.wait_for(ask(mesh), 5)).status == 503


async def test_a_request_that_was_cut_off_from_two_workers_is_no_poison(mesh: Mesh) -> None:
    """As happens to all of a router whose own cable is pulled."""
    async with AsyncExitStack() as stack:
        links = [await stack.enter_async_context(Relay()) for _ in range(2)]
        workers = [
            await stack.enter_async_context(scripted(mesh, name, link))
            for name, link in zip("ab", links, strict=True)
        ]
        await await_workers(mesh, 2)
        asked = ask(mesh)
        await eventually(lambda: any(worker.submits for worker in workers))
        first = 0 if workers[0].submits else 1
        links[first].swallow(True)
        second = 1 - first
        await eventually(lambda: len(workers[second].submits) == 1)
        links[first].swallow(False)
        links[second].swallow(True)
        await eventually(lambda: len(workers[first].submits) == 2)
        await answer(workers[first])
        assert (await asked).status == 200
        assert await mesh.metric('pagemesh:poison_requests_total{event="ended"}') == 0
