"""Values that clients write otherwise than JSON means them, and vLLM takes: 16.0 or "16", "0.5", "true", 1 for true."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final

import pydantic
from pydantic_core import CoreSchema, core_schema

_NUMBER: Final = re.compile(r"\s*[+-]?\d{1,20}(\.\d{0,20})?([eE][+-]?\d{1,3})?\s*", re.ASCII)
_TRUTH: Final = {"true": True, "false": False, "1": True, "0": False}

AS_MEANT: Final = "as JSON means it"
"""Step in the place of a fault that has another beside it: what is wrong once the value is read."""


class Lax:
    """Marks numbers, truths, and lists and objects of them; stands behind their bounds.

    What is written as JSON means it is taken as it is, without a call of Python.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: pydantic.GetCoreSchemaHandler
    ) -> CoreSchema:
        strict = handler(source)
        read = core_schema.no_info_before_validator_function(_reader(strict), strict)
        return core_schema.union_schema([(strict, AS_MEANT), read], mode="left_to_right")

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(schema["choices"][-1])


LAX: Final = Lax()
"""What the field of a body has that holds any of these."""

Truth = Annotated[bool, LAX]


def _reader(schema: Any) -> Callable[[Any], Any]:
    """What reads a value where it can, and gives it back as it is where it cannot."""
    if schema["type"] == "list":
        item = _reader(schema["items_schema"])
        return lambda given: list(map(item, given)) if isinstance(given, list) else given
    if schema["type"] == "dict":
        value = _reader(schema["values_schema"])
        return lambda given: (
            {name: value(each) for name, each in given.items()}
            if isinstance(given, dict)
            else given
        )
    return _READERS[schema["type"]]


def _whole(value: object) -> object:
    # A text of digits may have more of them than a float holds.
    if isinstance(value, str) and "." not in value and "e" not in value.lower():
        return int(value) if _NUMBER.fullmatch(value) else value
    number = _number(value)
    return int(number) if isinstance(number, float) and number.is_integer() else value


def _number(value: object) -> object:
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _truth(value: object) -> object:
    if isinstance(value, str):
        return _TRUTH.get(value.strip().lower(), value)
    return bool(value) if isinstance(value, int) and value in (0, 1) else value


_READERS: Final[dict[str, Callable[[object], object]]] = {
    "int": _whole,
    "float": _number,
    "bool": _truth,
}
"""By what pydantic calls the type."""
