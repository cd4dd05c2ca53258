"""The answer to POST /v1/responses, as OpenAI's own types read it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from pydantic import TypeAdapter

from pagemesh.errors import OverloadedError, WorkerLostError
from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import StopReason, Usage
from pagemesh.router.openai.logprobs import TokenNames
from pagemesh.router.parsers.interface import ToolCallDelta
from pagemesh.router.responses_api.items import Items
from pagemesh.router.responses_api.request import parse_responses_request
from pagemesh.router.responses_api.response import ResponsesWriter
from pagemesh.router.responses_api.response_object import ResponseObject
from pagemesh.router.responses_api.tools import custom_input, read_tools
from pagemesh.sampling.logprobs import TokenLogprobs
from tests.support.late_imports import openai

NAMES = TokenNames(lambda token_id: str(token_id).encode())

USAGE = Usage(10, 5, 3)

DELTAS = [
    ChatDelta(0, reasoning="Let me "),
    ChatDelta(0, reasoning="see."),
    ChatDelta(0, content="\n\nWell"),
    ChatDelta(0, content=", this:"),
    ChatDelta(0, tool_calls=(ToolCallDelta(0, "call-a", "add", ""),)),
    ChatDelta(0, tool_calls=(ToolCallDelta(0, None, None, '{"a":'),)),
    ChatDelta(0, tool_calls=(ToolCallDelta(0, None, None, " 1}"),)),
    ChatDelta(0, tool_calls=(ToolCallDelta(1, "call-b", "go", "{}"),)),
    ChatDelta(0, stop_reason=StopReason.STOP),
]

OUTPUT = [
    {
        "id": "rs_r_0",
        "status": "completed",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Let me see."}],
    },
    {
        "id": "msg_r_1",
        "status": "completed",
        "type": "message",
        "role": "assistant",
        "content": [
            {
                "type": "output_text",
                "text": "\n\nWell, this:",
                "annotations": [],
                "logprobs": [],
            }
        ],
    },
    {
        "id": "fc_r_2",
        "status": "completed",
        "type": "function_call",
        "call_id": "call-a",
        "name": "add",
        "arguments": '{"a": 1}',
    },
    {
        "id": "fc_r_3",
        "status": "completed",
        "type": "function_call",
        "call_id": "call-b",
        "name": "go",
        "arguments": "{}",
    },
]


@cache
def stream_event() -> TypeAdapter[Any]:
    return TypeAdapter(openai.types.responses.ResponseStreamEvent)


def make_writer(**body: Any) -> ResponsesWriter:
    fields, _ = parse_responses_request(json.dumps({"input": "Hello"} | body).encode())
    tools = read_tools(fields.tools or [])
    response = ResponseObject("r", 100, "demo", fields, tools, temperature=0.5, top_p=1.0)
    return ResponsesWriter(response, Items("r", NAMES, tools, has_logprobs=fields.has_logprobs))


def read(frames: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each of which OpenAI's type accepts, numbered from 0."""
    events = []
    for frame in frames.decode().split("\n\n")[:-1]:
        if frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        checked = stream_event().validate_python(event, strict=True)
        assert checked.type == event["type"]
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def streamed(writer: ResponsesWriter, deltas: list[ChatDelta]) -> list[dict[str, Any]]:
    return read(b"".join(map(writer.events, deltas)) + writer.end(USAGE))


def test_the_whole_answer_has_an_item_for_every_part() -> None:
    body = make_writer(instructions="Be brief.").whole(DELTAS, USAGE)
    response = openai.types.responses.Response.model_validate(body, strict=True)
    assert (response.id, response.status, response.created_at) == ("resp_r", "completed", 100)
    assert response.output_text == "\n\nWell, this:"
    assert (response.instructions, response.temperature, body["store"]) == ("Be brief.", 0.5, False)
    assert body["output"] == OUTPUT
    assert body["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    }


def test_the_events_come_in_the_order_of_openai() -> None:
    events = streamed(make_writer(), DELTAS)
    text = ["response.content_part.added", "response.output_text.delta"]
    call = ["response.output_item.added", "response.function_call_arguments.delta"]
    assert [event["type"] for event in events] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
        *("response.reasoning_text.delta", "response.reasoning_text.delta"),
        *("response.reasoning_text.done", "response.content_part.done"),
        "response.output_item.done",
        *("response.output_item.added", *text, "response.output_text.delta"),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        *(*call, "response.function_call_arguments.delta"),
        *("response.function_call_arguments.done", "response.output_item.done"),
        *(*call, "response.function_call_arguments.done", "response.output_item.done"),
        "response.completed",
    ]


def test_the_stream_tells_the_same_as_the_whole_answer() -> None:
    events = streamed(make_writer(), DELTAS)
    whole = make_writer().whole(DELTAS, USAGE)
    assert events[-1]["response"] == whole
    done = [each for each in events if each["type"] == "response.output_item.done"]
    assert [each["item"] for each in done] == whole["output"]
    assert [each["output_index"] for each in done] == [0, 1, 2, 3]
    added = [each["item"] for each in events if each["type"] == "response.output_item.added"]
    assert [(item["id"], item["status"]) for item in added] == [
        (item["id"], "in_progress") for item in whole["output"]
    ]
    begun = events[0]["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)


@pytest.mark.parametrize("last", [2, 4, 6])
def test_an_answer_cut_by_its_limit_is_incomplete_and_so_is_its_last_item(last: int) -> None:
    deltas = [*DELTAS[:last], ChatDelta(0, stop_reason=StopReason.LENGTH)]
    events = streamed(make_writer(), deltas)
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"]) == ("response.incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    statuses = [item["status"] for item in response["output"]]
    assert statuses == ["completed"] * (len(statuses) - 1) + ["incomplete"]
    done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    assert done == response["output"]
    assert make_writer().whole(deltas, USAGE) == response


def test_a_call_cut_by_a_stop_string_is_incomplete_though_there_was_room() -> None:
    deltas = [
        *DELTAS[:6],
        ChatDelta(0, stop_reason=StopReason.STOP, stop_string="1", cuts_call=True),
    ]
    response = make_writer().whole(deltas, USAGE)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", None)
    assert response["output"][-1]["status"] == "incomplete"
    assert streamed(make_writer(), deltas)[-1]["response"] == response


def test_log_probabilities_stand_in_deltas_and_in_the_whole_text() -> None:
    score = TokenLogprobs(7, -0.5, 1, (7,), (-0.5,))
    deltas = [
        ChatDelta(0, content="a", content_logprobs=(score,)),
        ChatDelta(0, stop_reason=StopReason.STOP),
    ]
    entry = {"token": "7", "logprob": -0.5, "bytes": [55]}
    asked = make_writer(include=["message.output_text.logprobs"], top_logprobs=1)
    events = streamed(asked, deltas)
    told = {each["type"]: each for each in events}
    expected = [{**entry, "top_logprobs": [entry]}]
    assert told["response.output_text.delta"]["logprobs"] == expected
    assert told["response.output_text.done"]["logprobs"] == expected
    text = events[-1]["response"]["output"][0]["content"][0]
    assert text["logprobs"] == expected
    openai.types.responses.Response.model_validate(events[-1]["response"], strict=True)


def test_a_failure_ends_the_stream_with_the_failed_response_and_what_clients_raise() -> None:
    writer = make_writer()
    error = WorkerLostError("the worker is gone")
    events = read(writer.events(DELTAS[0]) + writer.failure(error))
    failed, told = events[-2:]
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "the worker is gone"}
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert (told["type"], told["message"]) == ("error", "the worker is gone")
    # The Python client raises for an object of this name.
    assert told["error"]["type"] == "server_error"


def test_an_overload_in_mid_stream_has_its_own_code() -> None:
    events = read(make_writer().failure(OverloadedError("too many")))
    assert events[-2]["response"]["error"]["code"] == "rate_limit_exceeded"


def test_the_first_sign_of_life_is_the_beginning_of_the_stream() -> None:
    writer = make_writer()
    first, second = writer.keepalive(), writer.keepalive()
    assert [each["type"] for each in read(first)] == ["response.created", "response.in_progress"]
    assert second == b": keepalive\n\n"
    assert writer.events(ChatDelta(0)) == b""


def test_what_was_asked_for_is_told_again() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    body = make_writer(
        tools=[{"type": "function", "name": "add", "parameters": {}}],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
        text={"format": schema, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        max_output_tokens=7,
        metadata={"a": "b"},
        truncation="disabled",
        user="u",
    ).whole(DELTAS[-1:], USAGE)
    response = openai.types.responses.Response.model_validate(body, strict=True)
    assert response.text is not None
    assert (body["text"]["format"], response.text.verbosity) == (schema, "low")
    assert body["tool_choice"] == {"type": "function", "name": "add"}
    assert response.tools[0].type == "function"
    assert response.reasoning is not None
    assert (response.reasoning.effort, response.max_output_tokens) == ("low", 7)
    assert (response.metadata, response.user, response.parallel_tool_calls) == (
        {"a": "b"},
        "u",
        False,
    )
    assert response.output == []


PATCH = '*** Begin Patch\n+a "b"\n*** End Patch'
CUSTOM = {"type": "custom", "name": "apply_patch"}
PATCHES = [
    ChatDelta(0, tool_calls=(ToolCallDelta(0, "call-a", "apply_patch", '{"inp'),)),
    ChatDelta(0, tool_calls=(ToolCallDelta(0, None, None, json.dumps({"input": PATCH})[5:]),)),
    ChatDelta(0, tool_calls=(ToolCallDelta(1, "call-b", "add", "{}"),)),
    ChatDelta(0, stop_reason=StopReason.STOP),
]
PATCH_ITEM = {
    "id": "ctc_r_0",
    "status": "completed",
    "type": "custom_tool_call",
    "call_id": "call-a",
    "name": "apply_patch",
    "input": PATCH,
}


def test_a_call_of_a_custom_tool_has_its_text() -> None:
    body = make_writer(tools=[CUSTOM]).whole(PATCHES, USAGE)
    openai.types.responses.Response.model_validate(body, strict=True)
    assert body["output"][0] == PATCH_ITEM
    assert body["output"][1]["type"] == "function_call"
    assert body["tools"] == [{**CUSTOM, "description": None, "format": None}]


def test_a_stream_tells_the_text_of_a_custom_tool_once_it_is_known() -> None:
    events = streamed(make_writer(tools=[CUSTOM]), PATCHES)
    told = [event for event in events if event.get("output_index") == 0]
    assert [event["type"] for event in told] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    assert told[0]["item"] == {**PATCH_ITEM, "status": "in_progress", "input": ""}
    assert (told[1]["delta"], told[2]["input"], told[3]["item"]) == (PATCH, PATCH, PATCH_ITEM)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"input": "a\\nb"', "a\nb"),
        ('{"input": "a\\nb', "a\nb"),
        ('{"other": 1}', '{"other": 1}'),
        ("no JSON", "no JSON"),
    ],
)
def test_the_text_of_a_call_that_was_cut_or_is_another_is_what_there_is(
    arguments: str, text: str
) -> None:
    assert custom_input(arguments) == text
