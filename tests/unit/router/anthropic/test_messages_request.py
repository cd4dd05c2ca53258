"""Bodies of POST /v1/messages as chat requests, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagemesh.errors import PagemeshError, ResponseNotFoundError, UnsupportedError
from pagemesh.router.anthropic.errors import error_body
from pagemesh.router.anthropic.request import MessagesRequest, parse_messages_request, parse_prompt

TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}


def parse(**fields: Any) -> MessagesRequest:
    body = {"max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]} | fields
    return parse_messages_request(json.dumps(body).encode())[0]


def chat(**fields: Any) -> dict[str, Any]:
    """The fields of the chat request that say anything."""
    found = parse(**fields).for_chat()
    return {name: value for name, value in found.items() if value is not None}


def test_a_simple_request() -> None:
    assert chat(model="demo") == {
        "model": "demo",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_completion_tokens": 10,
    }


def test_fields_of_sampling_have_other_names() -> None:
    found = chat(
        system=[
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "b"},
        ],
        stop_sequences=["x", "y"],
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        stream=True,
        metadata={"user_id": "u"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
    )
    assert found["messages"][0] == {"role": "system", "content": "a\nb"}
    del found["messages"]
    assert found == {
        "max_completion_tokens": 10,
        "stop": ["x", "y"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stream": True,
        "user": "u",
    }


def test_a_conversation_with_tools_keeps_calls_results_and_thoughts() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "1+1?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I add.", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Wait."},
                {"type": "tool_use", "id": "toolu_t1", "name": "add", "input": {"a": "ü"}},
                {"type": "tool_use", "id": "t2", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Here:"},
                {"type": "tool_result", "tool_use_id": "toolu_t1", "content": "2"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no"}],
                },
            ],
        },
    ]
    calls = [
        {
            "id": "t1",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": "ü"}'},
        },
        {"id": "t2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
    ]
    assert chat(messages=messages)["messages"] == [
        {"role": "user", "content": "1+1?"},
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "I add.",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "t1", "content": "2"},
        {"role": "tool", "tool_call_id": "t2", "content": "no"},
        {"role": "user", "content": "Here:"},
    ]


def test_an_assistants_last_message_is_continued() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I am"}]
    found = chat(messages=messages)
    assert (found["continue_final_message"], found["add_generation_prompt"]) == (True, False)
    assert "continue_final_message" not in chat()


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
            {
                "tool_choice": {"type": "function", "function": {"name": "add"}},
                "parallel_tool_calls": False,
            },
        ),
    ],
)
def test_choices_among_tools(choice: dict[str, Any], expected: dict[str, Any]) -> None:
    found = chat(tools=[TOOL], tool_choice=choice)
    function = {"name": "add", "parameters": {"type": "object"}, "description": "Adds."}
    assert found["tools"] == [{"type": "function", "function": function}]
    assert {name: found[name] for name in found if name in expected} == expected
    assert ("parallel_tool_calls" in found) == ("parallel_tool_calls" in expected)


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "adaptive"}, True),
        ({"type": "disabled"}, False),
    ],
)
def test_thoughts_are_wished_for_by_the_template(thinking: Any, expected: bool) -> None:
    found = chat(max_tokens=2000, thinking=thinking)
    assert found["chat_template_kwargs"] == {"enable_thinking": expected}
    assert "chat_template_kwargs" not in chat()


def test_the_output_may_have_a_schema_and_an_effort() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    found = chat(output_config={"format": form, "effort": "low"})
    assert found["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": True},
    }
    assert found["reasoning_effort"] == "low"
    assert chat(output_format=form)["response_format"] == found["response_format"]


def test_tokens_are_counted_without_a_limit() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "system": "s", "tools": [TOOL]}
    found = parse_prompt(json.dumps(body).encode()).for_chat()
    assert [message["role"] for message in found["messages"]] == ["system", "user"]
    assert len(found["tools"]) == 1


def user(*blocks: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user({"type": "image", "source": {}}), "messages[0].content[0].type"),
        (user({"type": "document", "source": {}}), "messages[0].content[0].type"),
        (
            user({"type": "tool_use", "id": "a", "name": "b", "input": {}}),
            "messages[0].content[0].type",
        ),
        (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
        (
            user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}),
            "messages[0].content[0].content[0].type",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_format": {"type": "xml"}}, "output_format.type"),
        ({"compaction": {"type": "auto"}}, "compaction"),
        ({"thread": {"type": "fork"}}, "thread.type"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "u"}]}, "mcp_servers"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"service_tier": "best"}, "service_tier"),
    ],
)
def test_faulty_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(PagemeshError) as caught:
        chat(**fields)
    assert (caught.value.http_status, caught.value.param) == (400, param)
    assert param in caught.value.message


def test_a_conversation_that_was_not_kept_is_asked_for_again() -> None:
    assert chat(thread={"type": "create"}) == chat()
    with pytest.raises(ResponseNotFoundError, match="previous_message_id") as caught:
        chat(thread={"type": "continue", "previous_message_id": "msg_1"}, messages=[])
    assert caught.value.param == "thread.previous_message_id"
    error = error_body(caught.value, "req_1")["error"]
    assert error["type"] == "not_found_error"
    assert error["details"] == {"error_code": "thread_not_found"}
    assert "details" not in error_body(UnsupportedError("No."), "req_1")["error"]


def test_a_missing_limit_is_named() -> None:
    with pytest.raises(PagemeshError, match="max_tokens is missing"):
        parse_messages_request(b'{"messages": [{"role": "user", "content": "a"}]}')


def test_what_the_model_cannot_read_is_told_apart_from_faults() -> None:
    with pytest.raises(UnsupportedError, match="only reads text, tool_result"):
        parse(**user({"type": "search_result"}))
