"""The Responses API of a router whose workers run the real scheduler over a fake model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import pytest
from pydantic import TypeAdapter

from pagemesh.tokenizer import Tokenizer
from pagemesh.v1 import openai_pb2
from tests.contract.http_answers import http_body, read
from tests.contract.router_harness import MODEL, Mesh, running_mesh
from tests.fakes.engine import expected_tokens
from tests.support.late_imports import openai

TOKENIZER = Tokenizer(MODEL)
REQUEST = {"model": "demo", "input": "hi hi hi", "max_output_tokens": 8, "seed": 1}


@cache
def stream_event() -> TypeAdapter[Any]:
    return TypeAdapter(openai.types.responses.ResponseStreamEvent)


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh(num_blocks=256) as mesh:
        yield mesh


async def expected_text(num_tokens: int, *messages: dict[str, str]) -> str:
    ids = await TOKENIZER.encode_chat(messages or [{"role": "user", "content": "hi hi hi"}])
    return TOKENIZER.decode(expected_tokens(ids, num_tokens, 1))


async def test_a_response_has_the_models_text(mesh: Mesh) -> None:
    answer = await mesh.responses(REQUEST, x_request_id="r-1")
    assert answer.status == 200
    response = openai.types.responses.Response.model_validate(answer.json(), strict=True)
    assert response.output_text == await expected_text(8)
    assert (response.id, response.model) == ("resp_r-1", "demo")
    assert (response.status, response.max_output_tokens) == ("incomplete", 8)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (16, 8)


async def test_items_and_instructions_are_rendered_with_the_template(mesh: Mesh) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    body = (await mesh.responses({**REQUEST, "instructions": "s", "input": items})).json()
    assert body["output"][0]["content"][0]["text"] == await expected_text(
        8,
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    )


async def test_a_stream_tells_the_same_as_the_whole_answer(mesh: Mesh) -> None:
    whole = (await mesh.responses(REQUEST, x_request_id="r-1")).json()
    events = (await mesh.responses({**REQUEST, "stream": True}, x_request_id="r-1")).named_events()
    for event in events:
        stream_event().validate_python(event, strict=True)
    deltas = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    assert "".join(deltas) == whole["output"][0]["content"][0]["text"]
    assert events[0]["type"] == "response.created"
    last = events[-1]["response"]
    for body in (last, whole):
        # The second request finds the KV of the first, and may be answered in another second.
        del body["usage"]["input_tokens_details"], body["created_at"]
    assert (events[-1]["type"], last) == ("response.incomplete", whole)


async def test_log_probabilities_come_when_they_are_included(mesh: Mesh) -> None:
    include = ["message.output_text.logprobs"]
    body = (await mesh.responses({**REQUEST, "include": include, "top_logprobs": 2})).json()
    logprobs = body["output"][0]["content"][0]["logprobs"]
    assert [len(entry["top_logprobs"]) for entry in logprobs] == [2] * 8
    openai.types.responses.Response.model_validate(body, strict=True)


async def test_a_conversation_that_is_too_long_is_refused_or_begins_later(mesh: Mesh) -> None:
    turns = [{"role": "user", "content": f"{number} " + "word " * 40} for number in range(20)]
    request = {**REQUEST, "instructions": "s", "input": turns}
    answer = await mesh.responses(request)
    assert answer.status == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
    answer = await mesh.responses({**request, "truncation": "auto"})
    assert answer.status == 200
    kept = answer.json()["usage"]["input_tokens"]
    # What is left is the longest end that has room for the answer.
    template = [{"role": "system", "content": "s"}, *turns]
    sizes = [len(await TOKENIZER.encode_chat([template[0], *turns[start:]])) for start in range(20)]
    assert kept == max(size for size in sizes if size + 8 <= 512)


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({"store": True}, "store", 400),
        ({"previous_response_id": "resp_1"}, "previous_response_id", 400),
        ({"input": 7}, "input", 400),
        ({"temperature": 3}, "temperature", 400),
        ({"max_output_tokens": 600}, "max_output_tokens", 400),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", 400),
        ({"model": "other"}, "model", 404),
    ],
)
async def test_faults_are_told_in_the_words_of_the_api(
    mesh: Mesh, fields: dict[str, Any], param: str, status: int
) -> None:
    answer = await mesh.responses({**REQUEST, **fields})
    assert (answer.status, answer.json()["error"]["param"]) == (status, param)
    # Also before the first event of a stream.
    answer = await mesh.responses({**REQUEST, **fields, "stream": True})
    assert (answer.status, answer.content_type) == (status, "application/json")
    assert param in answer.json()["error"]["message"] or param == "model"


async def test_after_the_first_event_an_error_fails_the_response() -> None:
    async with running_mesh(seconds_per_token=0.05, request_timeout=0.6) as mesh:
        request = {**REQUEST, "max_output_tokens": 200, "stream": True}
        events = (await mesh.responses(request)).named_events()
        failed, error = events[-2:]
        assert failed["type"] == "response.failed"
        assert stream_event().validate_python(failed, strict=True).response.status == "failed"
        assert (error["type"], error["code"]) == ("error", "timeout")


async def test_a_request_that_waits_is_begun_at_the_first_sign_of_life() -> None:
    async with running_mesh(seconds_per_token=1.3) as mesh:
        request = {**REQUEST, "max_output_tokens": 1, "stream": True}
        bodies = [body.data async for body in mesh.openai.Responses(http_body(request))]
        # Nothing is known yet, but what the request is.
        assert bodies[0].startswith(b"event: response.created\n")
        assert b"output_item" not in bodies[0]


async def test_responses_are_not_stored(mesh: Mesh) -> None:
    answer = await read(
        mesh.openai.StoredResponse(openai_pb2.OpenAIStoredResponseRequest(response_id="resp_1"))
    )
    assert answer.status == 404
    error = answer.json()["error"]
    assert error["code"] == "response_not_found"
    assert "'resp_1'" in error["message"]
    assert "does not store" in error["message"]
