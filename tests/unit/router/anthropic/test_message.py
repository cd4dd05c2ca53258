"""The answer to POST /v1/messages, as Anthropic's own types read it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from pydantic import TypeAdapter

from pagemesh.errors import (
    DeadlineError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PagemeshError,
    UnavailableError,
    WorkerLostError,
)
from pagemesh.router.anthropic.errors import error_body
from pagemesh.router.anthropic.response import MessageWriter
from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import StopReason, Usage
from pagemesh.router.parsers.interface import ToolCallDelta
from tests.support.late_imports import anthropic

USAGE = Usage(10, 5, 3)
COUNTS = {
    "input_tokens": 7,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 3,
    "output_tokens": 5,
}

DELTAS = [
    ChatDelta(0, reasoning="Let me "),
    ChatDelta(0, reasoning="see."),
    ChatDelta(0, content="Well"),
    ChatDelta(0, content=", this:"),
    ChatDelta(0, tool_calls=(ToolCallDelta(0, f"chatcmpl-tool-{'0a' * 16}", "add", ""),)),
    ChatDelta(0, tool_calls=(ToolCallDelta(0, None, None, '{"a":'),)),
    ChatDelta(0, tool_calls=(ToolCallDelta(0, None, None, " 1}"),)),
    ChatDelta(0, stop_reason=StopReason.STOP),
]
CONTENT: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Let me see.", "signature": ""},
    {"type": "text", "text": "Well, this:"},
    {"type": "tool_use", "id": "toolu_0a0a0a0a0a0a0a0a0a0a0a0a", "name": "add", "input": {"a": 1}},
]


@cache
def stream_event() -> TypeAdapter[Any]:
    return TypeAdapter(anthropic.types.RawMessageStreamEvent)


def make_writer(*, shows_thinking: bool = True) -> MessageWriter:
    return MessageWriter("r", "demo", 10, shows_thinking=shows_thinking)


def read(frames: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each of which Anthropic's type accepts; pings and errors are no such types."""
    events = []
    for frame in frames.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):
            assert stream_event().validate_python(event, strict=True).type == event["type"]
        events.append(event)
    return events


def streamed(writer: MessageWriter, deltas: list[ChatDelta]) -> list[dict[str, Any]]:
    return read(b"".join(map(writer.events, deltas)) + writer.end(USAGE))


def test_the_whole_message_has_a_block_for_every_part() -> None:
    body = make_writer().whole(DELTAS, USAGE)
    message = anthropic.types.Message.model_validate(body, strict=True)
    assert (message.id, message.role, message.model) == ("msg_r", "assistant", "demo")
    assert body["content"] == CONTENT
    assert (message.stop_reason, message.stop_sequence) == ("tool_use", None)
    assert body["usage"] == COUNTS


def test_events_begin_fill_and_end_every_block() -> None:
    events = streamed(make_writer(), DELTAS)
    start, *blocks, counts, stop = events
    assert start["message"]["usage"] == COUNTS | {
        "input_tokens": 10,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    assert start["message"]["content"] == []
    assert [(each["type"].removeprefix("content_block_"), each["index"]) for each in blocks] == [
        *(("start", 0), ("delta", 0), ("delta", 0), ("stop", 0)),
        *(("start", 1), ("delta", 1), ("delta", 1), ("stop", 1)),
        *(("start", 2), ("delta", 2), ("delta", 2), ("stop", 2)),
    ]
    starts = [each["content_block"] for each in blocks if "content_block" in each]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "toolu_0a0a0a0a0a0a0a0a0a0a0a0a", "name": "add", "input": {}},
    ]
    assert [each["delta"] for each in blocks if "delta" in each] == [
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "see."},
        {"type": "text_delta", "text": "Well"},
        {"type": "text_delta", "text": ", this:"},
        {"type": "input_json_delta", "partial_json": '{"a":'},
        {"type": "input_json_delta", "partial_json": " 1}"},
    ]
    assert counts["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert counts["usage"] == COUNTS
    assert stop == {"type": "message_stop"}


@pytest.mark.parametrize(
    ("deltas", "reason", "sequence"),
    [
        ([ChatDelta(0, content="a", stop_reason=StopReason.STOP)], "end_turn", None),
        ([ChatDelta(0, content="a", stop_reason=StopReason.LENGTH)], "max_tokens", None),
        (
            [*DELTAS[:-1], ChatDelta(0, stop_reason=StopReason.STOP, cuts_call=True)],
            "end_turn",
            None,
        ),
        (
            [ChatDelta(0, content="a", stop_reason=StopReason.STOP, stop_string="END")],
            "stop_sequence",
            "END",
        ),
        ([*DELTAS[:6], ChatDelta(0, stop_reason=StopReason.LENGTH)], "max_tokens", None),
    ],
)
def test_reasons_to_stop(deltas: list[ChatDelta], reason: str, sequence: str | None) -> None:
    body = make_writer().whole(deltas, USAGE)
    expected = {"stop_reason": reason, "stop_sequence": sequence}
    assert {name: body[name] for name in expected} == expected
    assert streamed(make_writer(), deltas)[-2]["delta"] == expected


@pytest.mark.parametrize(
    ("arguments", "read_as"),
    [('{"a": "b', {"a": "b"}), ("", {}), ("[1]", {}), ("{a", {}), ('{"a": 1}', {"a": 1})],
)
def test_arguments_are_read_as_far_as_they_got(arguments: str, read_as: object) -> None:
    deltas = [
        ChatDelta(0, tool_calls=(ToolCallDelta(0, "a", "add", arguments),)),
        ChatDelta(0, stop_reason=StopReason.LENGTH),
    ]
    assert make_writer().whole(deltas, USAGE)["content"][0]["input"] == read_as


def test_thoughts_may_be_left_out() -> None:
    body = make_writer(shows_thinking=False).whole(DELTAS, USAGE)
    assert body["content"] == [CONTENT[0] | {"thinking": ""}, *CONTENT[1:]]
    events = streamed(make_writer(shows_thinking=False), DELTAS)
    assert "see" not in json.dumps(events)


def test_signs_of_life_are_pings_behind_the_beginning() -> None:
    writer = make_writer()
    frames = writer.keepalive() + writer.keepalive() + writer.events(DELTAS[2])
    assert [each["type"] for each in read(frames)] == [
        *("message_start", "ping", "ping", "content_block_start", "content_block_delta")
    ]


def test_a_failure_in_mid_stream_is_an_error_event() -> None:
    events = read(make_writer().failure(WorkerLostError("the worker is gone")))
    assert events == [
        {
            "type": "error",
            "error": {"type": "overloaded_error", "message": "the worker is gone"},
            "request_id": "r",
        }
    ]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequestError("x"), "invalid_request_error"),
        (ModelNotFoundError("x"), "not_found_error"),
        (OverloadedError("x"), "rate_limit_error"),
        (UnavailableError("x"), "overloaded_error"),
        (DeadlineError("x"), "timeout_error"),
        (PagemeshError("x"), "api_error"),
    ],
)
def test_errors_have_anthropics_types(error: PagemeshError, kind: str) -> None:
    assert error_body(error, "r")["error"]["type"] == kind
