"""Clients that ask are told where their request went, and why, if the operator allows it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from pagemesh.v1 import inference_pb2, types_pb2
from tests.contract.http_answers import http_body
from tests.contract.router_harness import Mesh, running_mesh

PROMPT = list(range(10, 74))
KEY = "x-pagemesh-explain"


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh(decode=2, explain_routes=True) as mesh:
        yield mesh


@pytest.fixture
async def silent_mesh() -> AsyncIterator[Mesh]:
    async with running_mesh() as mesh:
        yield mesh


def route_of(headers: Any) -> Any:
    return json.loads(dict(headers)["x-pagemesh-route"])


async def test_a_completion_tells_its_route(mesh: Mesh) -> None:
    prompt = [7, *PROMPT]
    first = await mesh.completions({"prompt": prompt, "max_tokens": 2}, x_pagemesh_explain="true")
    route = route_of(first.headers)
    worker = route["worker"]
    assert worker in mesh.workers
    assert (route["policy"], route["way"]) == ("kv_aware", "local")
    assert (route["fit_workers"], route["refused"]) == (2, {})
    assert (route["available_tokens"], route["captured_tokens"]) == (0, 0)
    considered = route["considered"][0]
    assert (considered["worker"], considered["held_tokens"]) == (worker, 0)
    assert considered["scores"].keys() == {"predicted_ttft", "decode_load", "session"}
    assert str(prompt[1:4]).strip("[]") not in first.headers["x-pagemesh-route"]


async def test_a_request_with_several_prompts_tells_of_the_first(mesh: Mesh) -> None:
    request = {"prompt": [PROMPT, PROMPT[::-1]], "n": 2, "max_tokens": 2}
    answer = await mesh.completions(request, x_pagemesh_explain="1")
    assert route_of(answer.headers)["prompts"] == 2


async def test_a_stream_tells_its_route_before_its_first_event(mesh: Mesh) -> None:
    request = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    call = mesh.openai.ChatCompletions(http_body(request), metadata=((KEY, "True"),), timeout=20)
    assert route_of(await call.initial_metadata())["worker"] in mesh.workers
    frames = b"".join([body.data async for body in call])
    assert frames.endswith(b"data: [DONE]\n\n")


async def test_clients_of_grpc_find_it_in_the_initial_metadata(mesh: Mesh) -> None:
    request = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=PROMPT),
        sampling=types_pb2.SamplingParams(max_tokens=2),
    )
    call = mesh.inference.Generate(request, metadata=((KEY, "true"),), timeout=20)
    assert route_of(await call.initial_metadata())["worker"] in mesh.workers
    assert [response async for response in call]


@pytest.mark.parametrize("metadata", [{}, {"x_pagemesh_explain": "false"}])
async def test_nobody_is_told_who_does_not_ask(mesh: Mesh, metadata: dict[str, str]) -> None:
    answer = await mesh.completions({"prompt": PROMPT, "max_tokens": 1}, **metadata)
    assert answer.status == 200
    assert "x-pagemesh-route" not in answer.headers


async def test_an_unclear_wish_is_refused_by_name(mesh: Mesh) -> None:
    answer = await mesh.completions({"prompt": PROMPT}, x_pagemesh_explain="please")
    error = answer.json()["error"]
    assert (answer.status, error["param"]) == (400, KEY)
    assert error["message"] == f"the header {KEY} is 'please', but must be true or false"
    call = mesh.inference.Generate(
        inference_pb2.GenerateRequest(text="hi"), metadata=((KEY, "please"),), timeout=20
    )
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_where_the_operator_does_not_allow_it_the_wish_is_refused(silent_mesh: Mesh) -> None:
    answer = await silent_mesh.completions({"prompt": PROMPT}, x_pagemesh_explain="true")
    assert answer.status == 400
    assert "--explain-routes" in answer.json()["error"]["message"]
    answer = await silent_mesh.completions(
        {"prompt": PROMPT, "max_tokens": 1}, x_pagemesh_explain="false"
    )
    assert answer.status == 200
