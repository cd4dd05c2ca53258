"""Bodies of POST /v1/responses: what is read of them, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagemesh.errors import PagemeshError, UnsupportedError
from pagemesh.router.responses_api.request import ResponsesRequest, parse_responses_request
from pagemesh.router.responses_api.tools import read_tool_choice, read_tools


def parse(**fields: Any) -> ResponsesRequest:
    return parse_responses_request(json.dumps({"input": "Hello"} | fields).encode())[0]


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object"}}


def test_fields_without_an_effect_here_are_taken() -> None:
    fields = parse(
        store=False,
        background=False,
        previous_response_id=None,
        max_tool_calls=3,
        service_tier="flex",
        metadata={"a": "b"},
        user="u",
        prompt_cache_key="k",
        truncation="disabled",
        include=["reasoning.encrypted_content"],
        stream=True,
        stream_options={"include_obfuscation": False},
        nobody_knows=1,
    )
    assert not fields.has_logprobs


def test_log_probabilities_are_asked_for_by_include() -> None:
    assert parse(include=["message.output_text.logprobs"], top_logprobs=3).has_logprobs
    assert not parse(top_logprobs=3).has_logprobs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", True),
        ("background", True),
        ("previous_response_id", "resp_1"),
        ("conversation", {"id": "conv_1"}),
        ("prompt", {"id": "pmpt_1"}),
    ],
)
def test_what_would_have_to_be_kept_is_refused(name: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match=rf"^{name} is .*does not store") as caught:
        parse(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": ["a"]}, "input[0]"),
        ({"instructions": ["a"]}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "nine"}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["everything"]}, "include[0]"),
        ({"include": "everything"}, "include"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"reasoning": {"effort": "some"}}, "reasoning.effort"),
        ({"truncation": "middle"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"store": 2}, "store"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"parallel_tool_calls": "one"}, "parallel_tool_calls"),
    ],
)
def test_faulty_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(PagemeshError) as caught:
        parse(**fields)
    assert (caught.value.http_status, caught.value.param) == (400, param)
    assert param in caught.value.message


def test_functions_become_those_of_a_chat() -> None:
    tools = read_tools([function("add") | {"strict": True, "description": "Adds."}])
    assert [tool.for_chat() for tool in tools] == [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Adds.",
                "parameters": {"type": "object"},
                "strict": True,
            },
        }
    ]


def test_a_function_with_one_text_stands_for_a_custom_tool() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: X"}
    given = [
        {"type": "custom", "name": "patch", "description": "Edits.", "format": grammar},
        {"type": "custom", "name": "run", "format": {"type": "text"}},
    ]
    patch, run = (tool.for_chat() for tool in read_tools(given))
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    told = "Edits.\n\nThe input follows this lark definition:\nstart: X"
    assert patch == {
        "type": "function",
        "function": {"name": "patch", "parameters": parameters, "description": told},
    }
    assert run == {"type": "function", "function": {"name": "run", "parameters": parameters}}


@pytest.mark.parametrize(
    ("tool", "param", "named"),
    [
        ({"type": "web_search"}, "tools[1].type", '"web_search"'),
        ({"type": "local_shell"}, "tools[1].type", "only functions and custom tools"),
        ({"type": "custom"}, "tools[1].name", "missing"),
        ({"type": "custom", "name": "a", "format": {"type": "xml"}}, "tools[1].format.type", "xml"),
        ({"type": "function"}, "tools[1].name", "missing"),
        ({"type": "function", "name": "a", "parameters": 7}, "tools[1].parameters", "7"),
        ({"name": "a"}, "tools[1].type", "missing"),
    ],
)
def test_faulty_tools_are_named(tool: dict[str, Any], param: str, named: str) -> None:
    with pytest.raises(PagemeshError) as caught:
        read_tools([function("a"), tool])
    assert caught.value.param == param
    assert named in caught.value.message


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (None, None),
        ("required", "required"),
        (
            {"type": "function", "name": "b"},
            {"type": "function", "function": {"name": "b"}},
        ),
        (
            {"type": "custom", "name": "b"},
            {"type": "function", "function": {"name": "b"}},
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "b"}],
            },
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "b"}}],
                },
            },
        ),
    ],
)
def test_choices_among_tools(given: Any, choice: object) -> None:
    assert read_tool_choice(given) == choice


@pytest.mark.parametrize(
    "given",
    [
        "sometimes",
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "allowed_tools", "mode": "none", "tools": [{"name": "a"}]},
    ],
)
def test_other_choices_are_refused(given: Any) -> None:
    with pytest.raises(PagemeshError, match="tool_choice") as caught:
        read_tool_choice(given)
    assert caught.value.http_status == 400
    assert (caught.value.param or "").startswith("tool_choice")
