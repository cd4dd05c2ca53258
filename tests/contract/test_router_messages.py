"""Anthropic's API of a router whose workers run the real scheduler over a fake model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import pytest
from google.api.httpbody_pb2 import HttpBody
from pydantic import TypeAdapter

from pagemesh.tokenizer import Tokenizer
from tests.contract.full_mesh import NUM_TAKEN, occupied, one_seat
from tests.contract.http_answers import http_body, read
from tests.contract.router_harness import MODEL, Mesh, running_mesh
from tests.fakes.engine import expected_tokens
from tests.support.late_imports import anthropic

TOKENIZER = Tokenizer(MODEL)
REQUEST = {
    "model": "demo",
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "hi hi hi"}],
    "seed": 1,
}


@cache
def stream_event() -> TypeAdapter[Any]:
    return TypeAdapter(anthropic.types.RawMessageStreamEvent)


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh(num_blocks=256) as mesh:
        yield mesh


async def test_a_message_has_the_models_text(mesh: Mesh) -> None:
    answer = await mesh.messages(REQUEST, x_request_id="r-1", anthropic_version="2023-06-01")
    assert (answer.status, answer.headers["request-id"]) == (200, "r-1")
    message = anthropic.types.Message.model_validate(answer.json(), strict=True)
    (block,) = message.content
    assert block.type == "text"
    assert len(block.text) > 0
    assert (message.id, message.model) == ("msg_r-1", "demo")
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 8)
    assert message.usage.input_tokens == 16


async def test_a_stream_tells_the_same_as_the_whole_message(mesh: Mesh) -> None:
    request = {**REQUEST, "temperature": 0}
    whole = (await mesh.messages(request, x_request_id="r-1")).json()
    events = (await mesh.messages({**request, "stream": True})).named_events()
    for event in events:
        stream_event().validate_python(event, strict=True)
    kinds = [each["type"] for each in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(each["delta"]["text"] for each in events if "index" in each and "delta" in each)
    assert text == whole["content"][0]["text"]
    counts = events[-2]["usage"]
    assert counts["output_tokens"] == whole["usage"]["output_tokens"]
    assert counts["input_tokens"] + counts["cache_read_input_tokens"] == 16


async def test_a_stop_sequence_is_named(mesh: Mesh) -> None:
    ids = await TOKENIZER.encode_chat(REQUEST["messages"])  # type: ignore[arg-type]
    text = TOKENIZER.decode(expected_tokens(ids, 8, 1))
    request = {**REQUEST, "stop_sequences": ["\x00", text[3:6]]}
    message = anthropic.types.Message.model_validate(
        (await mesh.messages(request)).json(), strict=True
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[3:6])


async def test_the_tokens_of_a_prompt_are_counted(mesh: Mesh) -> None:
    request = {"model": "demo", "messages": REQUEST["messages"], "system": "Be brief."}
    answer = await read(mesh.anthropic.CountTokens(http_body(request)))
    count = anthropic.types.MessageTokensCount.model_validate(answer.json(), strict=True)
    messages = [{"role": "system", "content": "Be brief."}, *REQUEST["messages"]]  # type: ignore[misc]
    assert count.input_tokens == len(await TOKENIZER.encode_chat(messages))


@pytest.mark.parametrize(
    ("fields", "named", "kind", "status"),
    [
        ({"max_tokens": None}, "max_tokens", "invalid_request_error", 400),
        ({"max_tokens": 600}, "max_tokens is 600", "invalid_request_error", 400),
        ({"stop_sequences": [""]}, "stop_sequences[0]", "invalid_request_error", 400),
        ({"temperature": -1}, "temperature is -1", "invalid_request_error", 400),
        (
            {"messages": [{"role": "user", "content": "word " * 600}]},
            "This model's maximum context length is 512 tokens. However, ",
            "invalid_request_error",
            400,
        ),
        ({"model": "other"}, "'other'", "not_found_error", 404),
    ],
)
async def test_faults_are_told_in_the_words_of_the_api(
    mesh: Mesh, fields: dict[str, Any], named: str, kind: str, status: int
) -> None:
    answer = await mesh.messages({**REQUEST, **fields}, x_request_id="r-1")
    body = answer.json()
    assert (answer.status, body["type"], body["request_id"]) == (status, "error", "r-1")
    assert body["error"]["type"] == kind
    assert named in body["error"]["message"]
    # Also before the first event of a stream.
    answer = await mesh.messages({**REQUEST, **fields, "stream": True})
    assert (answer.status, answer.json()["error"]["type"]) == (status, kind)


async def test_a_body_that_is_no_json_is_refused(mesh: Mesh) -> None:
    for rpc in (mesh.anthropic.Messages, mesh.anthropic.CountTokens):
        answer = await read(rpc(HttpBody(content_type="application/json", data=b"{")))
        assert (answer.status, answer.json()["type"]) == (400, "error")


async def test_a_full_router_says_so_in_the_words_of_the_api() -> None:
    async with one_seat(max_waiting_requests=1) as mesh, occupied(mesh, NUM_TAKEN + 1):
        refused = await mesh.messages(REQUEST)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["type"] == "rate_limit_error"


async def test_after_the_first_event_an_error_is_an_event() -> None:
    async with running_mesh(seconds_per_token=0.05, request_timeout=0.6) as mesh:
        request = {**REQUEST, "max_tokens": 200, "stream": True}
        events = (await mesh.messages(request)).named_events()
        assert events[0]["type"] == "message_start"
        assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", "timeout_error")


async def test_a_request_that_waits_is_pinged() -> None:
    async with running_mesh(seconds_per_token=1.3) as mesh:
        events = (await mesh.messages({**REQUEST, "max_tokens": 1, "stream": True})).named_events()
        assert [each["type"] for each in events[:2]] == ["message_start", "ping"]
