"""Tools and messages around them, as a request says it and as templates and grammars get it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.openai.chat_request import ChatRequest, read_chat_request
from pagemesh.router.servicers.chat_messages import read_chat
from pagemesh.v1 import inference_pb2

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "default": None}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
SUB = {"type": "function", "function": {"name": "sub", "description": "takes away"}}
NAMED = {"type": "function", "function": {"name": "sub"}}


def read(**fields: Any) -> ChatRequest:
    return read_chat_request({"messages": [{"role": "user", "content": "Hi"}], **fields})


@pytest.mark.parametrize(
    ("fields", "mode", "callable_names", "shown_names", "named"),
    [
        ({}, "none", [], [], False),
        ({"tool_choice": "none"}, "none", [], [], False),
        ({"tools": [ADD, SUB]}, "auto", ["add", "sub"], ["add", "sub"], False),
        ({"tools": [ADD], "tool_choice": None}, "auto", ["add"], ["add"], False),
        ({"tools": [ADD], "tool_choice": "none"}, "none", ["add"], ["add"], False),
        ({"tools": [ADD], "tool_choice": "required"}, "required", ["add"], ["add"], False),
        ({"tools": [ADD, SUB], "tool_choice": NAMED}, "required", ["sub"], ["add", "sub"], True),
        (
            {
                "tools": [ADD, SUB],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [NAMED]},
                },
            },
            "auto",
            ["sub"],
            ["sub"],
            False,
        ),
    ],
)
def test_tools_and_choice_become_one(
    fields: dict[str, Any],
    mode: str,
    callable_names: list[str],
    shown_names: list[str],
    named: bool,
) -> None:
    use = read(**fields).tool_use
    assert (use.mode, use.is_named) == (mode, named)
    assert [tool.name for tool in use.callable] == callable_names
    assert [tool.function.name for tool in use.shown] == shown_names


def test_templates_see_tools_as_they_were_given() -> None:
    request = read(tools=[ADD, SUB])
    assert request.render_options(request.tool_use).tools == [ADD, SUB]
    assert read().render_options(read().tool_use).tools is None


def test_grammars_get_the_schema_with_its_place_in_the_request() -> None:
    strict = {"type": "function", "function": {**ADD["function"], "strict": True}}  # type: ignore[dict-item]
    first, second = read(tools=[SUB, strict]).tool_use.callable
    assert (first.parameters, first.is_strict) == (None, False)
    assert (second.parameters, second.is_strict) == (SCHEMA, True)
    assert second.param == "tools[1].function.parameters"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": []}, "tools", "tools is an empty list"),
        ({"tool_choice": "auto"}, "tool_choice", "tool_choice needs tools"),
        ({"tool_choice": NAMED}, "tool_choice", "tool_choice needs tools"),
        (
            {"tools": [ADD], "tool_choice": NAMED},
            "tool_choice.function.name",
            'has "sub", which is none of the tools',
        ),
        ({"tools": [ADD], "tool_choice": "always"}, "tool_choice", 'tool_choice is "always"'),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
        (
            {"tools": [{"type": "function", "function": {"name": ""}}]},
            "tools[0].function.name",
            "at least 1 character",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
            "valid dictionary",
        ),
    ],
)
def test_tools_that_do_not_fit_are_refused(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        _ = read(**fields).tool_use
    assert error.value.param == param
    assert message in error.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        (
            {"tools": [ADD], "tool_choice": {"type": "custom", "custom": {"name": "x"}}},
            "tool_choice.type",
        ),
    ],
)
def test_tools_that_are_no_functions_are_refused_by_name(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(UnsupportedError) as error:
        read(**fields)
    assert error.value.param == param


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}


@pytest.mark.parametrize("given", ['{"a": 1}', {"a": 1}, "", None, '{"city": "'], ids=str)
def test_calls_reach_the_template_as_they_were_given(given: Any) -> None:
    """What becomes of their arguments is for the template's shape to say."""
    messages = [
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call(given)]},
        {"role": "tool", "content": [{"type": "text", "text": "3"}], "tool_call_id": "c1"},
    ]
    assert read(messages=messages).template_messages() == [
        {"role": "assistant", "content": None, "tool_calls": [call(given)]},
        messages[1],
    ]


@pytest.mark.parametrize(("content", "seen"), [("", None), ("x", "x")])
def test_typed_calls_without_text_have_no_content(content: str, seen: str | None) -> None:
    """As those of chat completions: templates may look for a null."""
    called = inference_pb2.ToolCall(id="c1", name="add", arguments="{}")
    message = inference_pb2.ChatMessage(role="assistant", content=content, tool_calls=[called])
    (shown,) = read_chat(inference_pb2.ChatPrompt(messages=[message])).template_messages()
    assert shown == {"role": "assistant", "content": seen, "tool_calls": [call("{}")]}


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}], ids=str)
def test_no_content_and_null_and_none_stay_apart(content: dict[str, Any]) -> None:
    message = {"role": "assistant", **content, "tool_calls": [call("{}")]}
    assert read(messages=[message]).template_messages() == [message]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_templates_see_thoughts_by_either_name(name: str) -> None:
    (message,) = read(
        messages=[{"role": "assistant", "content": "x", name: "hm"}]
    ).template_messages()
    assert (message["reasoning"], message["reasoning_content"]) == ("hm", "hm")


def test_an_answer_may_be_given_back_as_it_came() -> None:
    """Clients put the whole message back into the conversation, with all fields that they know."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "reasoning": None,
        "reasoning_content": None,
    }
    assert read(messages=[message]).template_messages() == [{"role": "assistant", "content": "x"}]
    declined: dict[str, Any] = {
        "role": "assistant",
        "content": [{"type": "refusal", "refusal": "no"}],
    }
    said = [{"type": "text", "text": "no"}]
    assert read(messages=[declined]).template_messages()[0]["content"] == said
    for content in ({"content": None}, {}):
        declined = {"role": "assistant", "refusal": "no", **content}
        assert read(messages=[declined]).template_messages()[0]["content"] == "no"


def test_effort_and_variables_reach_the_template() -> None:
    request = read(
        reasoning_effort="none", chat_template_kwargs={"x": 1}, documents=[{"text": "d"}]
    )
    options = request.render_options(request.tool_use)
    assert options.variables == {"x": 1, "enable_thinking": False, "reasoning_effort": "none"}
    assert options.documents == [{"text": "d"}]
    request = read(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})
    assert request.render_options(request.tool_use).variables["enable_thinking"] is False


@pytest.mark.parametrize(
    ("fields", "variables", "thinks"),
    [
        ({}, {"enable_thinking": False, "x": 1}, False),
        ({"chat_template_kwargs": {"x": 2}}, {"enable_thinking": False, "x": 2}, False),
        (
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True, "x": 1},
            True,
        ),
        (
            {"reasoning_effort": "low"},
            {"enable_thinking": True, "reasoning_effort": "low", "x": 1},
            True,
        ),
    ],
    ids=str,
)
def test_what_a_request_says_of_variables_wins_over_defaults(
    fields: dict[str, Any], variables: dict[str, Any], thinks: bool
) -> None:
    request, defaults = read(**fields), {"enable_thinking": False, "x": 1}
    assert request.render_options(request.tool_use, defaults=defaults).variables == variables
    assert request.wants_thoughts(defaults) is thinks
    assert read().wants_thoughts() is None


@pytest.mark.parametrize(
    ("fields", "adds", "continues"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, False, True),
    ],
    ids=json.dumps,
)
def test_how_the_prompt_ends(fields: dict[str, Any], adds: bool, continues: bool) -> None:
    request = read(**fields)
    options = request.render_options(request.tool_use)
    assert (options.add_generation_prompt, options.continue_final_message) == (adds, continues)


def test_a_prompt_cannot_end_in_two_ways() -> None:
    with pytest.raises(InvalidRequestError, match="cannot both be true"):
        read(continue_final_message=True, add_generation_prompt=True)
