"""Values that clients write otherwise than JSON means them, and vLLM takes: 16.0 or "16", "0.5", "true", 1 for true."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, Final

import pydantic

_NUMBER: Final = re.compile(r"\s*[+-]?\d{1,20}(\.\d{0,20})?([eE][+-]?\d{1,3})?\s*", re.ASCII)
_TRUTH: Final = {"true": True, "false": False, "1": True, "0": False}


def with_own_types(raw: dict[str, Any], error: pydantic.ValidationError) -> dict[str, Any] | None:
    """The object with the values that the error wants, where they can be read; None if there are none."""
    places = [
        (fault["loc"], read)
        for fault in error.errors(include_url=False, include_context=False)
        if (read := _READERS.get(fault["type"])) and read(fault["input"]) is not None
    ]
    if not places:
        return None
    changed, found = copy.deepcopy(raw), False
    for place, read in places:
        found |= _set(changed, place, read)
    return changed if found else None


def _whole(value: object) -> int | None:
    # A text of digits may have more of them than a float holds.
    if isinstance(value, str) and "." not in value and "e" not in value.lower():
        return int(value) if _NUMBER.fullmatch(value) else None
    number = value if isinstance(value, float) else _number(value)
    return None if number is None or not number.is_integer() else int(number)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else None


def _truth(value: object) -> bool | None:
    if isinstance(value, str):
        return _TRUTH.get(value.strip().lower())
    return bool(value) if isinstance(value, int) and value in (0, 1) else None


_READERS: Final[dict[str, Callable[[object], int | float | bool | None]]] = {
    "int_type": _whole,
    "float_type": _number,
    "bool_type": _truth,
}
"""By what pydantic calls the fault."""


def _set(
    holder: Any, place: tuple[int | str, ...], read: Callable[[object], int | float | bool | None]
) -> bool:
    """Change the value there; gives whether it was found, which it is not within unions."""
    *path, last = place
    try:
        for step in path:
            holder = holder[step]
        value = read(holder[last])
        if value is None:
            return False
        holder[last] = value
    except (KeyError, IndexError, TypeError):
        return False
    return True
