"""Schemas of requests that are not strict: what can be enforced is, and the rest is accepted."""

from __future__ import annotations

import copy
from decimal import Decimal
from pathlib import Path
from typing import Any

import llguidance
import pydantic
import pytest

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.matcher import make_matcher
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.sampling.structured.schemas import leniently


class Parcel(pydantic.BaseModel):
    data: bytes
    place: Path
    labels: set[str]
    price: Decimal


def accepts(schema: dict[str, Any], text: str) -> bool:
    matcher = make_matcher(llguidance.LLTokenizer("byte"), StructuredOutputs.of(json=schema))
    return matcher.validate_tokens(list(text.encode())) == len(text.encode())


WHOLE = '{"data": "a", "place": "/b", "labels": ["c", "c"], "price": "1.5"}'


def test_models_with_bytes_paths_sets_and_decimals_are_followed_as_far_as_they_can_be() -> None:
    schema = Parcel.model_json_schema()
    with pytest.raises(InvalidRequestError):
        accepts(schema, WHOLE)
    assert accepts(leniently(schema), WHOLE)
    assert not accepts(leniently(schema), WHOLE.replace('"a"', "1"))
    assert not accepts(leniently(schema), WHOLE.replace('["c", "c"]', "[1]"))


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "format": "zip"}, '"a"', "1"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "[null,null]", "[1]"),
        ({"type": "string", "pattern": "^(?!a)b$"}, '"a"', "1"),
        ({"type": "string", "pattern": r"^(a)\1$"}, '"b"', "1"),
        # A property may be called like a keyword.
        (
            {
                "type": "object",
                "properties": {"default": {"type": "string", "pattern": "^(?!a)b$"}},
                "required": ["default"],
            },
            '{"default":"a"}',
            '{"default":1}',
        ),
        # These are followed: a named group, and signs that are none of their own.
        ({"type": "string", "pattern": r"^(?P<x>a)b$"}, '"ab"', '"b'),
        ({"type": "string", "pattern": r"^\(\?=$"}, '"(?="', '"b'),
        ({"type": "string", "pattern": r"^\\\\1$"}, r'"\\\\1"', '"b'),
    ],
    ids=str,
)
def test_what_cannot_be_enforced_is_not(schema: dict[str, Any], right: str, wrong: str) -> None:
    given = {"anyOf": [schema]}
    before = copy.deepcopy(given)
    assert accepts(leniently(given), right)
    assert not accepts(leniently(given), wrong)
    assert given == before


def test_what_a_value_must_be_is_no_schema() -> None:
    """Nor is a property that is called so."""
    schema = {
        "properties": {
            "pattern": {"const": {"pattern": "(?=a)"}},
            "b": {"enum": [{"pattern": "(?=a)"}]},
        },
        "x-guidance": {"item_separator": ","},
    }
    lenient = {"item_separator": ",", "lenient": True}
    assert leniently(schema) == {**schema, "x-guidance": lenient}


def test_values_that_look_like_schemas_stay() -> None:
    value = {"pattern": "(?!a)", "properties": {"b": {"pattern": "(?!c)"}}}
    for keyword, given in (("const", value), ("enum", [value]), ("default", value)):
        assert leniently({keyword: copy.deepcopy(given)})[keyword] == given
