"""A worker that cannot be reached for a moment costs those who come meanwhile a pause, and not their answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pagemesh.core.engine import Pooling
from pagemesh.errors import UnavailableError
from pagemesh.router.session import WorkerSession
from tests.contract.http_answers import http_body, read
from tests.contract.router_harness import Mesh, running_mesh

AWAY_S = 0.5


async def complete(mesh: Mesh) -> None:
    answer = await mesh.completions({"prompt": [10, 11, 12], "max_tokens": 3, "seed": 0})
    assert answer.status == 200
    assert answer.json()["usage"]["completion_tokens"] == 3


async def embed(mesh: Mesh) -> None:
    answer = await read(mesh.openai.Embeddings(http_body({"input": [10, 11, 12], "model": "demo"})))
    assert answer.status == 200
    assert len(answer.json()["data"]) == 1


ASKING = pytest.mark.parametrize(
    ("ask", "engine"),
    [
        pytest.param(complete, {}, id="completion"),
        pytest.param(embed, {"pooling": Pooling("last", normalize=False)}, id="embedding"),
    ],
)


@ASKING
async def test_a_connection_that_is_opened_again_is_waited_for(
    ask: Any, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_mesh(**engine) as mesh:
        loop = asyncio.get_running_loop()
        back_at = loop.time() + AWAY_S
        monkeypatch.setattr(WorkerSession, "is_live", property(lambda _: loop.time() >= back_at))
        await ask(mesh)
        assert loop.time() >= back_at


@ASKING
async def test_a_connection_that_breaks_as_a_request_is_sent_is_tried_again(
    ask: Any, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_mesh(**engine) as mesh:
        submit = WorkerSession.submit
        refused: list[WorkerSession] = []

        def break_once(session: WorkerSession, *arguments: Any) -> int:
            if not refused:
                refused.append(session)
                raise UnavailableError("not connected")
            return submit(session, *arguments)

        monkeypatch.setattr(WorkerSession, "submit", break_once)
        await ask(mesh)
        assert refused


async def test_a_worker_that_is_gone_is_not_waited_for() -> None:
    async with running_mesh() as mesh:
        await mesh.remove("decode-0")
        loop = asyncio.get_running_loop()
        came_at = loop.time()
        answer = await mesh.completions({"prompt": [10], "max_tokens": 3})
        assert (answer.status, answer.json()["error"]["code"]) == (503, "no_worker")
        assert loop.time() - came_at < 1
