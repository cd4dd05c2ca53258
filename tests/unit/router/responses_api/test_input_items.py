"""Input items of the Responses API as messages of a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from pagemesh.errors import PagemeshError, UnsupportedError
from pagemesh.router.responses_api.input_items import read_input


def call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": "{}"}


def chat_call(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "add", "arguments": "{}"}}


def test_a_string_is_what_the_user_says_after_the_instructions() -> None:
    assert read_input("Be brief.", "Hello") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]


def test_messages_may_go_without_a_type_and_have_parts() -> None:
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief."},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                {"type": "input_text", "text": "b"},
            ],
        },
    ]
    assert read_input(None, items) == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
    ]


def test_thoughts_text_and_calls_of_a_turn_are_one_message() -> None:
    # As an answer's output comes back in the next request.
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "1+1 and 2+2?"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "I add."}],
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "Wait.", "annotations": [], "logprobs": []}
            ],
        },
        call("a"),
        call("b"),
        {"type": "function_call_output", "call_id": "a", "output": "2"},
        {
            "type": "function_call_output",
            "call_id": "b",
            "output": [{"type": "input_text", "text": "4"}],
        },
        {"role": "assistant", "content": "2 and 4"},
        {"role": "assistant", "content": "Anything else?"},
    ]
    assert read_input(None, items) == [
        {"role": "user", "content": "1+1 and 2+2?"},
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "I add.",
            "tool_calls": [chat_call("a"), chat_call("b")],
        },
        {"role": "tool", "tool_call_id": "a", "content": "2"},
        {"role": "tool", "tool_call_id": "b", "content": "4"},
        {"role": "assistant", "content": "2 and 4"},
        {"role": "assistant", "content": "Anything else?"},
    ]


def test_a_refusal_is_what_the_assistant_said() -> None:
    parts = [{"type": "refusal", "refusal": "No."}]
    assert read_input(None, [{"role": "assistant", "content": parts}]) == [
        {"role": "assistant", "content": "No."}
    ]


def test_thoughts_without_a_word_are_nothing() -> None:
    items = [{"type": "reasoning", "summary": [], "encrypted_content": "abc"}]
    assert read_input(None, items) == []


@pytest.mark.parametrize(
    ("item", "param", "named"),
    [
        ({"role": "king", "content": "a"}, "input[1].role", '"king"'),
        ({"role": "user", "content": 5}, "input[1].content", "5"),
        ({"role": "user"}, "input[1].content", "missing"),
        (
            {"role": "user", "content": [{"type": "input_text"}]},
            "input[1].content[0].text",
            "missing",
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            "input[1].content[0].type",
            "only reads text",
        ),
        (
            {
                "type": "function_call_output",
                "call_id": "a",
                "output": [{"type": "input_file"}],
            },
            "input[1].output[0].type",
            "only reads text",
        ),
        ({"type": "function_call", "name": "a", "arguments": "{}"}, "input[1].call_id", "missing"),
        (
            {"type": "function_call", "call_id": "a", "name": "a", "arguments": {}},
            "input[1].arguments",
            "{}",
        ),
        ({"type": "function_call_output", "call_id": "a"}, "input[1].output", "missing"),
        ({"type": "item_reference", "id": "msg_1"}, "input[1].type", '"item_reference"'),
        ({"type": "web_search_call", "id": "ws_1"}, "input[1].type", '"web_search_call"'),
        ({"type": 7}, "input[1].type", "7"),
        ({"type": "reasoning", "summary": [7]}, "input[1].summary[0]", "7"),
    ],
)
def test_faults_name_the_item_and_its_field(item: dict[str, Any], param: str, named: str) -> None:
    with pytest.raises(PagemeshError, match=r"^input\[1\]") as caught:
        read_input(None, [{"role": "user", "content": "a"}, item])
    assert (caught.value.http_status, caught.value.param) == (400, param)
    assert named in caught.value.message


def test_items_of_other_kinds_are_told_apart_from_faulty_ones() -> None:
    with pytest.raises(UnsupportedError, match="only message, function_call, function_call_output"):
        read_input(None, [{"type": "mcp_call"}])


def test_calls_of_custom_tools_are_those_of_the_functions_that_stand_for_them() -> None:
    items: list[dict[str, Any]] = [
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "é"'},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
    ]
    function = {"name": "patch", "arguments": '{"input": "a \\"é\\""}'}
    assert read_input(None, items) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]
