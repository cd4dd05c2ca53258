"""JSON schemas as the library that compiles them can follow them: bounds that it holds, and no more than it knows.

It reads every number as a float64, and bounds of whole numbers as integers of 64 bits: beyond 2^53 it would keep to
another number than the client's.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard

from pagemesh.errors import InvalidRequestError

_MAX_EXACT: Final = 2**53
"""Up to here a float64 holds every whole number."""

_END: Final = 2**63
"""Whole numbers have smaller magnitudes; over that of -2^63 the library ends the process."""

_LARGEST: Final = _END - 1024
"""Below that, of those that a float64 holds."""

_MAX_REAL: Final = 10**16
"""From here on the library writes numbers with an exponent, and cannot read that itself."""

_SIDES: Final = (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1))
"""Names of the bounds, and the sign that makes the side one of least values."""

GUIDANCE: Final = "x-guidance"
"""Where a schema says how the grammar library is to take it."""

_ESCAPED: Final = re.compile(r"\\[^1-9]", re.DOTALL)
_UNFOLLOWED: Final = re.compile(r"\(\?<?[=!]|\\[1-9]")
"""What no automaton can look for: what stands around a place, and what came before. The library refuses it."""

_LITERAL: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords of schemas with values."""

_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
"""Keywords of schemas with schemas by names of the client's."""


def check_values(name: str, value: object, param: str) -> None:
    """Raise InvalidRequestError for a value of `const` or `enum` with a number that would become another one."""
    for number in _whole_numbers(value):
        if not _is_kept(number):
            raise InvalidRequestError(
                f"{name} asks for {_shown(number)}, but of whole numbers beyond 2^53 only those are possible that a"
                " float64 holds, and -2^63 is not",
                param=param,
            )


def check_bounds(name: str, schema: dict[str, Any], param: str) -> None:
    """Likewise for bounds that leave no number, or that the library cannot follow."""
    types = schema.get("type", "number")
    is_real = "number" in (types if isinstance(types, list) else [types])
    for inclusive, exclusive, sign in _SIDES:
        for key in (inclusive, exclusive):
            bound = schema.get(key)
            if not _is_number(bound):
                continue
            if is_real and abs(bound) >= _MAX_REAL:
                most = f"bounds of numbers are less than {_MAX_REAL:.0e}"
            elif sign * bound >= _END:
                most = "whole numbers have at most 64 bits"
            else:
                continue
            raise InvalidRequestError(
                f"{name} has the {key} {_shown(bound)}, but {most}", param=param
            )


def round_bounds(schema: dict[str, Any]) -> None:
    """Replace whole bounds beyond 2^53 by the next ones inside of them that are kept; in this object alone.

    What was allowed and is not any more are at most 1,024 numbers.
    """
    for inclusive, exclusive, sign in _SIDES:
        bound, other = schema.get(inclusive), schema.get(exclusive)
        if _is_large(bound):
            # In drafts up to 4, the exclusive one is a boolean.
            step = 1 if other is True else 0
            schema[inclusive] = sign * _least_kept(sign * int(bound) + step)
            if other is True:
                del schema[exclusive]
        if _is_large(other):
            del schema[exclusive]
            least = _least_kept(sign * int(other) + 1)
            bound = schema.get(inclusive)
            schema[inclusive] = sign * (max(least, sign * bound) if _is_number(bound) else least)


def _least_kept(number: int) -> int:
    """The least whole number from this one on that is kept."""
    number = max(number, -_LARGEST)
    nearest = float(number)
    return int(nearest if nearest >= number else math.nextafter(nearest, math.inf))


def _is_kept(number: int) -> bool:
    try:
        return int(float(number)) == number != -_END
    except OverflowError:
        return False


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_large(value: object) -> TypeGuard[float]:
    """From here on float64 holds nothing but whole numbers; NaN and infinities are for the library to refuse."""
    return _is_number(value) and math.isfinite(value) and abs(value) >= _MAX_EXACT


def _whole_numbers(value: object) -> Iterator[int]:
    """All in a value, however deep."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, int):
            yield each


def _shown(number: float) -> str:
    """The number; of one with very many digits, how many they are (Python refuses to write it)."""
    if isinstance(number, int) and abs(number) >= 10**40:
        return f"a number of {int(math.log10(abs(number))) + 1} digits"
    return f"{number}"


def leniently(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without what cannot be enforced: the grammar library leaves out keywords and formats that it does
    not know, and this the patterns."""
    whole: dict[str, Any] = copy.deepcopy(dict(schema))
    for inner in inner_schemas(whole):
        pattern = inner.get("pattern")
        if isinstance(pattern, str) and _UNFOLLOWED.search(_ESCAPED.sub("", pattern)):
            del inner["pattern"]
    given = whole.get(GUIDANCE)
    whole[GUIDANCE] = {**(given if isinstance(given, dict) else {}), "lenient": True}
    return whole


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
