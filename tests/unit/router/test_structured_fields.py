"""How bodies say what their answers must look like."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError
from pagemesh.router.openai.chat_request import parse_chat_request
from pagemesh.router.openai.completion_request import parse_completion_request
from pagemesh.router.openai.fields import RequestFields
from pagemesh.sampling.structured.outputs import StructuredOutputs

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
MESSAGES = [{"role": "user", "content": "Hello"}]


def parse(kind: str, fields: dict[str, Any]) -> RequestFields:
    if kind == "chat":
        return parse_chat_request(json.dumps({"messages": MESSAGES} | fields).encode())
    return parse_completion_request(json.dumps({"prompt": "Hello"} | fields).encode())


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"regex": None}, "guided_regex": None}, None),
        ({"guided_whitespace_pattern": " "}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_object", "schema": {"type": "integer"}}},
            {"json": {"type": "integer"}},
        ),
        (
            {"response_format": {"type": "json_schema", "schema": {"type": "integer"}}},
            {"json": {"type": "integer"}},
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            {"json": SCHEMA},
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {}},
                }
            },
            {"json": {"x-guidance": {"lenient": True}}},
        ),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": json.dumps(SCHEMA)}, {"json": SCHEMA}),
        (
            {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
            {"json": SCHEMA, "whitespace_pattern": " ?"},
        ),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": "root ::= x"}, {"grammar": "root ::= x"}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"choice": ["a"]}}, {"choice": ["a"]}),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            {"json_object": True, "disable_any_whitespace": True},
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_every_way_means_the_same(
    kind: str, fields: dict[str, Any], options: dict[str, Any] | None
) -> None:
    expected = None if options is None else StructuredOutputs.of(**options)
    assert parse(kind, fields).output_constraint == expected


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": "json"}, "response_format", 'response_format is "json"'),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'json_schema'"),
        ({"response_format": {}}, "response_format.type", "response_format.type is missing"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format",
            "When response_format type is 'json_schema', the 'json_schema' field must be provided",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "response_format.json_schema.schema is missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "is missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 1}}},
            "response_format.json_schema.schema",
            "valid dictionary",
        ),
        (
            {"response_format": {"type": "text", "schema": {}}},
            "response_format",
            'response_format.schema is given, but response_format.type is "text"',
        ),
        ({"guided_json": 5}, "guided_json", "guided_json is 5"),
        ({"guided_json": "{"}, "guided_json", "structured_outputs.json is not valid JSON"),
        ({"guided_json": "[]"}, "guided_json", "must be a JSON schema"),
        ({"guided_regex": ["a"]}, "guided_regex", "valid string"),
        ({"guided_regex": "a" * 16385}, "guided_regex", "16385 bytes, but at most 16384"),
        ({"guided_choice": "a"}, "guided_choice", "valid list"),
        ({"guided_choice": []}, "guided_choice", "at least one string"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]", "valid string"),
        ({"structured_outputs": "a"}, "structured_outputs", 'structured_outputs is "a"'),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structured_outputs.structural_tag",
            "not permitted",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs",
            "exactly one kind .* regex and choice are specified",
        ),
        (
            {"structured_outputs": {"disable_any_whitespace": True}},
            "structured_outputs",
            "none are specified",
        ),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
            "only use one kind of constraints .* response_format and guided_regex",
        ),
        (
            {"guided_regex": "a", "guided_choice": ["b"]},
            "guided_choice",
            "only use one kind of constraints",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_wrong_shapes_are_refused_by_name(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        _ = parse("chat", fields).output_constraint
    assert refused.value.param == param
