"""Numbers and truths of bodies that are written otherwise than JSON means them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

from pagemesh.errors import InvalidRequestError
from pagemesh.router.openai.fields import RequestFields, check_fields
from pagemesh.router.openai.tokenizing import DetokenizeRequest
from pagemesh.router.openapi.operations import OPERATIONS

APIS = tuple(f"pagemesh.router.{api}." for api in ("openai", "anthropic", "responses_api"))


def kinds_of(kind: type[pydantic.BaseModel]) -> Iterator[type[pydantic.BaseModel]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith(APIS):
            yield each
        yield from kinds_of(each)


def strict_places(schema: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Of numbers and truths in a schema of pydantic's; those of unions are marked, or one form of several."""
    if isinstance(schema, dict) and schema.get("type") != "union":
        if schema.get("type") in ("int", "float", "bool"):
            yield place
        for name, each in schema.items():
            yield from strict_places(each, (*place, name))
    elif isinstance(schema, (list, tuple)):
        for each in schema:
            yield from strict_places(each, place)


BODIES = {kind for operation in OPERATIONS for kind in operation.requests}
KINDS = sorted(set(kinds_of(pydantic.BaseModel)), key=lambda kind: (kind.__module__, kind.__name__))


def test_all_bodies_are_looked_at() -> None:
    assert set(KINDS) > BODIES


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_number_and_truth_is_marked(kind: type[pydantic.BaseModel]) -> None:
    assert list(strict_places(kind.__pydantic_core_schema__)) == []


@pytest.mark.parametrize("written", [1.0, "1"])
def test_a_long_list_is_read_at_once(written: object) -> None:
    # Lists of ids tell one fault at a time.
    ids = [written] * 5_000
    assert check_fields(DetokenizeRequest, {"tokens": ids}).tokens == [1] * 5_000
    fields = check_fields(RequestFields, {"allowed_token_ids": ids, "stop_token_ids": ids})
    assert fields.allowed_token_ids == fields.stop_token_ids == [1] * 5_000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": "0"}, "max_tokens is 0: Input should be greater than or equal to 1"),
        ({"max_tokens": 0.0}, "max_tokens is 0: Input should be greater than or equal to 1"),
        ({"max_tokens": 16.5}, "max_tokens is 16.5: Input should be a valid integer"),
        ({"max_tokens": True}, "max_tokens is true: Input should be a valid integer"),
        ({"temperature": "3"}, "temperature is 3.0: Input should be less than or equal to 2"),
        ({"temperature": [1]}, "temperature is [1]: Input should be a valid number"),
        ({"stream": "yes"}, 'stream is "yes": Input should be a valid boolean'),
        ({"n": "x", "seed": "5"}, 'n is "x": Input should be a valid integer'),
        ({"stop_token_ids": ["1", "x"]}, 'stop_token_ids[1] is "x": Input should be a valid integer'),
        ({"logit_bias": {"1": "200"}}, "logit_bias.1 is 200.0: Input should be less than or equal to 100"),
        ({"logit_bias": {"as JSON means it": "x"}}, "Input should be a valid number"),
    ],
)  # fmt: skip
def test_a_fault_is_told_of_what_was_read(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check_fields(RequestFields, fields)
    assert str(refused.value).endswith(message)
