"""What a request may ask its output to look like."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.outputs import StructuredKind, StructuredOutputs


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"json": {"type": "object"}}, StructuredKind.JSON, '{"type": "object"}'),
        ({"json": '{"type":"object"}'}, StructuredKind.JSON, '{"type":"object"}'),
        ({"json": {"const": "é"}}, StructuredKind.JSON, '{"const": "é"}'),
        ({"regex": "a+"}, StructuredKind.REGEX, "a+"),
        ({"choice": ["yes", "né"]}, StructuredKind.CHOICE, '["yes", "né"]'),
        ({"grammar": 'root ::= "a"'}, StructuredKind.GRAMMAR, 'root ::= "a"'),
        ({"json_object": True}, StructuredKind.JSON_OBJECT, ""),
        ({"json_object": False, "regex": "a"}, StructuredKind.REGEX, "a"),
    ],
    ids=str,
)
def test_each_kind_has_a_text(options: dict[str, Any], kind: StructuredKind, text: str) -> None:
    outputs = StructuredOutputs.of(**options)
    assert (outputs.kind, outputs.text) == (kind, text)
    assert pickle.loads(pickle.dumps(outputs)) == outputs
    assert hash(StructuredOutputs.of(**options)) == hash(outputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one kind .* none are specified"),
        ({"json_object": False}, "none are specified"),
        ({"json": {}, "regex": "a"}, "json and regex are specified"),
        ({"json": "{bad"}, "structured_outputs.json is not valid JSON: Expecting property name"),
        ({"json": "[1]"}, "must be a JSON schema"),
        ({"json": "true"}, "must be a JSON schema"),
        ({"json": {"const": float("nan")}}, "json is not valid JSON"),
        ({"json": "[" * 100_000}, "json is not valid JSON"),
        ({"json": ""}, "json is not valid JSON"),
        ({"regex": ""}, "structured_outputs.regex is empty"),
        ({"grammar": ""}, "structured_outputs.grammar is empty"),
        ({"choice": []}, "choice must be a list of at least one string"),
        ({"choice": "yes"}, "choice must be a list"),
        ({"choice": ["yes", 1]}, "choice must be a list"),
        ({"regex": "é" * 8193}, "regex has 16386 bytes, but at most 16384"),
        (
            {"grammar": "a" * 16385},
            "grammar has 16385 bytes besides its JSON schemas, but at most 16384",
        ),
        (
            {"grammar": 'start: %json {"const": "é"} | %json {"a": 1' + "b" * 16400},
            "grammar has 16429 bytes besides its JSON schemas, but at most 16384",
        ),
        (
            {"grammar": 'start: %json {"const": "' + "a" * 131072 + '"}'},
            "grammar has 131098 bytes, but at most 131072",
        ),
        ({"json": {"const": "a" * 131072}}, "json has 131085 bytes, but at most 131072"),
        ({"choice": ["a" * 131072]}, "choice has 131076 bytes, but at most 131072"),
        ({"regex": "\ud800"}, "regex is not valid Unicode"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        StructuredOutputs.of(**options)
    assert refused.value.param == "structured_outputs"
    assert len(refused.value.message) < 300
