"""How deep, how wide and how often what a client describes may be, beside how long its text is.

The library that compiles it has limits of its own, for memory and for the work of a step; but it reaches some of
them in the middle of an answer. What is refused here is refused before anything begins, by its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.schema_numbers import check_bounds, check_values

MAX_DEPTH: Final = 100
"""Of objects and lists in a schema, and of brackets in an expression."""

MAX_ALTERNATIVES: Final = 10_000
"""Of choices, and values of an `enum`; of more, the library gives up behind the first token."""

MAX_SUBSCHEMAS: Final = 500
"""Of one `anyOf`, `oneOf` or `allOf`."""

MAX_OPTIONAL_PROPERTIES: Final = 600
"""Of one object: each may follow any before it, of which each step takes account."""

MAX_MULTIPLE_DIGITS: Final = 4
"""Of a `multipleOf`, without zeros around them: there is a state for each remainder, and seven digits take seconds."""

MAX_REPETITIONS: Final = 10_000
"""That an expression or a rule may ask for."""

_REPEATED: Final = re.compile(r"\{ *(\d*) *(?:, *(\d*) *)?\}")
_REPEATED_IN_LARK: Final = re.compile(r"~ *(\d+)(?: *\.\. *(\d+))?")
_BRACKETS: Final = re.compile(r"\\.|[()]", re.DOTALL)

_LITERAL: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords of schemas with values."""

_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
"""Keywords of schemas with schemas by names of the client's."""


def check_schema(name: str, schema: object, param: str) -> None:
    """Raise InvalidRequestError, with the number, for a schema that is too deep or wide anywhere."""
    for depth, value in schema_values(schema):
        _require(depth <= MAX_DEPTH, param, f"{name} is nested {depth} deep", MAX_DEPTH)
        if not isinstance(value, dict):
            continue
        for key, most in (
            ("enum", MAX_ALTERNATIVES),
            ("anyOf", MAX_SUBSCHEMAS),
            ("oneOf", MAX_SUBSCHEMAS),
            ("allOf", MAX_SUBSCHEMAS),
        ):
            given = value.get(key)
            if isinstance(given, list):
                _require(len(given) <= most, param, f"{name} has {len(given)} in one {key}", most)
        num_optional = _num_optional(value)
        _require(
            num_optional <= MAX_OPTIONAL_PROPERTIES,
            param,
            f"{name} has {num_optional} optional properties in one object",
            MAX_OPTIONAL_PROPERTIES,
        )
        check_values(name, [value.get("const"), value.get("enum")], param)
        check_bounds(name, value, param)
        _check_multiple(name, value.get("multipleOf"), param)
        if isinstance(pattern := value.get("pattern"), str):
            check_expression(f"a pattern of {name}", pattern, param)


def _num_optional(schema: dict[str, Any]) -> int:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return 0
    needed = (
        {each for each in required if isinstance(each, str)}
        if isinstance(required, list)
        else set()
    )
    return len(properties.keys() - needed)


def _check_multiple(name: str, multiple: object, param: str) -> None:
    if not isinstance(multiple, (int, float)):
        return
    digits = f"{multiple}".partition("e")[0].replace(".", "").strip("-0")
    _require(
        len(digits) <= MAX_MULTIPLE_DIGITS,
        param,
        f"a multipleOf of {name} has {len(digits)} digits",
        MAX_MULTIPLE_DIGITS,
    )


def check_choices(name: str, text: str, param: str) -> None:
    """Likewise for choices, which are a JSON list."""
    num_choices = len(json.loads(text))
    _require(
        num_choices <= MAX_ALTERNATIVES, param, f"{name} has {num_choices} texts", MAX_ALTERNATIVES
    )


def check_expression(name: str, text: str, param: str) -> None:
    """Likewise for a regular expression."""
    _check_repetitions(name, _REPEATED, text, param)
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        depth += {"(": 1, ")": -1}.get(bracket, 0)
        deepest = max(deepest, depth)
    _require(deepest <= MAX_DEPTH, param, f"{name} is nested {deepest} deep", MAX_DEPTH)


def check_rules(name: str, text: str, param: str) -> None:
    """Likewise for a grammar."""
    check_expression(name, text, param)
    _check_repetitions(name, _REPEATED_IN_LARK, text, param)


def _check_repetitions(name: str, syntax: re.Pattern[str], text: str, param: str) -> None:
    # Python reads no number of thousands of digits.
    counts = (int(count[:12]) for found in syntax.findall(text) for count in found if count)
    most = max(counts, default=0)
    _require(
        most <= MAX_REPETITIONS, param, f"{name} repeats something {most} times", MAX_REPETITIONS
    )


def schema_values(schema: object) -> Iterator[tuple[int, Any]]:
    """Everything in a schema with how deep it lies; not by recursion, which has a limit of its own."""
    waiting: list[tuple[int, Any]] = [(1, schema)]
    while waiting:
        depth, value = waiting.pop()
        yield depth, value
        inner = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        )
        waiting += [(depth + 1, each) for each in inner if isinstance(each, (dict, list))]


def inner_schemas(schema: object) -> Iterator[dict[str, Any]]:
    """The schema and those within it: values that it only names, such as those of `const`, are none, and properties
    may be called like keywords."""
    waiting: list[object] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            yield value
            for key, inner in value.items():
                if key in _BY_NAME and isinstance(inner, dict):
                    waiting += inner.values()
                elif key not in _LITERAL:
                    waiting.append(inner)


def _require(condition: bool, param: str, what: str, most: int) -> None:
    if not condition:
        raise InvalidRequestError(f"{what}, but at most {most} are allowed", param=param)
