"""What `GET /mesh` and the page's routes say of a mesh in one process."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from pagemesh.config import TenantsConfig
from pagemesh.core.engine import Pooling
from pagemesh.router.console.watchers import MAX_WATCHERS
from pagemesh.v1 import console_pb2
from tests.contract.http_answers import Answer, http_body, pairs, read
from tests.contract.router_harness import DEADLINE_S, Mesh, eventually, running_mesh
from tests.contract.tenant_keys import ACME, bearer

PROMPT = list(range(10, 50))
SECRET = "a name that nobody else must read"


async def mesh_object(mesh: Mesh, **metadata: str) -> Any:
    return (await mesh_answer(mesh, **metadata)).json()


async def mesh_answer(mesh: Mesh, **metadata: str) -> Answer:
    return await read(mesh.console.Mesh(console_pb2.ConsoleMeshRequest(), metadata=pairs(metadata)))


def events_call(mesh: Mesh) -> grpc.aio.UnaryStreamCall[Any, HttpBody]:
    call: grpc.aio.UnaryStreamCall[Any, HttpBody] = mesh.console.MeshEvents(
        console_pb2.ConsoleMeshEventsRequest()
    )
    return call


async def next_event(call: grpc.aio.UnaryStreamCall[Any, HttpBody]) -> Any:
    body: Any = await asyncio.wait_for(call.read(), DEADLINE_S)
    return json.loads(body.data.decode().removeprefix("data: "))


async def test_a_request_is_shown_with_where_it_went_and_why() -> None:
    async with running_mesh(decode=2, prefill=1) as mesh:
        answer = await mesh.completions(
            {"prompt": PROMPT, "max_tokens": 3, "seed": 0}, x_request_id="r-7"
        )
        shown = await mesh_object(mesh)
    usage = answer.json()["usage"]
    (row,) = shown["requests"]
    assert row == row | {
        "number": 1, "id": "r-7", "kind": "generate", "model": "demo", "end": "length",
        "error": None, "prompts": 1, "choices": 1, "prompt_tokens": usage["prompt_tokens"],
        "output_tokens": 3, "cached_tokens": 0, "decisions": 1,
    }  # fmt: skip
    assert 0 < row["time_to_first_token"] <= row["seconds"]
    (place,) = row["places"]
    assert place["worker"] in ("decode-0", "decode-1")
    assert (place["prefill"], place["way"], place["taken_way"]) == ("prefill-0", "remote", "remote")
    assert (place["lookup"], place["retry"]) == ("answered", False)
    assert place["considered"][0]["worker"] == place["worker"]
    assert place["ready_seconds"] > 0
    assert shown["window"]["ttft"]["count"] == 1
    assert shown["window"]["itl"]["count"] == 2
    assert shown["window"]["cache"]["queried"] == len(PROMPT)


async def test_workers_are_shown_with_their_load() -> None:
    async with running_mesh(decode=1, prefill=1, seconds_per_token=0.05) as mesh:
        call = mesh.openai.Completions(http_body({"prompt": PROMPT, "max_tokens": 400, "seed": 0}))
        task = asyncio.create_task(read(call))
        deadline = time.monotonic() + DEADLINE_S
        while True:
            shown = await mesh_object(mesh)
            decode, prefill = shown["workers"]
            if decode["running"] and decode["used_blocks"]:
                break
            assert time.monotonic() < deadline, shown
            await asyncio.sleep(0.02)
        assert (decode["id"], decode["role"], decode["state"]) == ("decode-0", "decode", "ready")
        assert (prefill["id"], prefill["role"], prefill["state"]) == (
            "prefill-0",
            "prefill",
            "ready",
        )
        assert decode["degraded"] is None
        assert 0 < decode["used_blocks"] < decode["blocks"]
        assert shown["queue"] == {"in_router": 1, "running": 1, "waiting": 0}
        (row,) = shown["requests"]
        assert row["end"] is None
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: mesh.workers["decode-0"].engine.num_free_blocks == 64)
        ended = (await mesh_object(mesh))["requests"][0]
        assert (ended["end"], ended["error"]) == ("abort", None)


async def test_a_request_that_fails_says_how() -> None:
    async with running_mesh(decode=1) as mesh:
        await mesh.remove("decode-0")
        await mesh.completions({"prompt": PROMPT, "max_tokens": 3})
        shown = await mesh_object(mesh)
    # Refused before it was begun with: nothing was decided about it.
    assert (shown["workers"], shown["requests"]) == ([], [])


async def test_nothing_that_clients_wrote_is_shown(keys: Path) -> None:
    async with running_mesh(tenants=TenantsConfig(api_key_file=str(keys))) as mesh:
        body = {"prompt": PROMPT, "max_tokens": 3, "user": SECRET, "cache_salt": SECRET}
        answer = await mesh.completions(body, **bearer(ACME))
        shown = await mesh_answer(mesh, **bearer(ACME))
        text = shown.data.decode()
    assert len(json.loads(text)["requests"]) == 1
    assert shown.headers["cache-control"] == "no-store"
    for secret in (SECRET, ACME, "acme", answer.json()["choices"][0]["text"]):
        assert secret not in text


async def test_the_mesh_needs_a_key_where_the_page_needs_none(keys: Path) -> None:
    async with running_mesh(tenants=TenantsConfig(api_key_file=str(keys))) as mesh:
        refused = await mesh_answer(mesh)
        assert (refused.status, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await read(events_call(mesh))).status == 401
        for asset in ("", "main.js"):
            page = await read(mesh.console.Page(console_pb2.ConsolePageRequest(asset=asset)))
            assert page.status == 200


async def test_events_come_while_somebody_looks_and_bring_what_is_new() -> None:
    async with running_mesh() as mesh:
        await mesh.completions({"prompt": PROMPT, "max_tokens": 2}, x_request_id="old")
        call = events_call(mesh)
        first = await next_event(call)
        assert [row["id"] for row in first["requests"]] == ["old"]
        await mesh.completions({"prompt": PROMPT, "max_tokens": 2}, x_request_id="new")
        second = await next_event(call)
        assert [row["id"] for row in second["requests"]] == ["new"]
        call.cancel()


async def test_a_router_that_stops_does_not_wait_for_those_who_look() -> None:
    async with running_mesh(grace_period=30.0) as mesh:
        call = events_call(mesh)
        await next_event(call)
        await asyncio.wait_for(mesh.router.close(), DEADLINE_S)
        assert await call.read() == grpc.aio.EOF


async def test_one_who_looks_too_many_is_told_so() -> None:
    async with running_mesh() as mesh:
        calls = [events_call(mesh) for _ in range(MAX_WATCHERS)]
        for call in calls:
            await next_event(call)
        refused = await read(events_call(mesh))
        assert refused.status == 429
        assert refused.json()["error"]["message"].startswith(f"{MAX_WATCHERS} clients look")
        for call in calls:
            call.cancel()


async def test_a_file_is_sent_again_only_when_it_changed() -> None:
    async with running_mesh(decode=0) as mesh:
        request = console_pb2.ConsolePageRequest(asset="main.js")
        first = await read(mesh.console.Page(request))
        tag = first.headers["etag"]
        assert first.content_type == "text/javascript; charset=utf-8"
        again = await read(mesh.console.Page(request, metadata=pairs({"if-none-match": tag})))
        assert (again.status, again.data, again.headers["etag"]) == (304, b"", tag)
        other = await read(mesh.console.Page(request, metadata=pairs({"if-none-match": '"x"'})))
        assert (other.status, other.data) == (200, first.data)


async def test_a_file_that_is_none_is_refused_by_name() -> None:
    async with running_mesh(decode=0) as mesh:
        answer = await read(mesh.console.Page(console_pb2.ConsolePageRequest(asset="../x")))
    assert answer.status == 404
    assert answer.json()["error"]["message"] == "the page has no file '../x'"


async def test_embeddings_are_shown_too() -> None:
    async with running_mesh(pooling=Pooling("last", normalize=False)) as mesh:
        await read(mesh.openai.Embeddings(http_body({"input": [PROMPT, PROMPT[::-1]]})))
        (row,) = (await mesh_object(mesh))["requests"]
    assert (row["kind"], row["end"], row["prompts"]) == ("embed", "stop", 2)
    assert row["prompt_tokens"] == 2 * len(PROMPT)
    assert [place["worker"] for place in row["places"]] == ["decode-0", "decode-0"]
