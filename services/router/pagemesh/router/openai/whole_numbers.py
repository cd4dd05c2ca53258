"""Whole numbers that clients write as 16.0: JSON has one kind of number, and vLLM takes them, too."""

from __future__ import annotations

import copy
from typing import Any

import pydantic


def with_integers(raw: dict[str, Any], error: pydantic.ValidationError) -> dict[str, Any] | None:
    """The object with integers where the error wants them and such numbers are; None if there are none."""
    places = [
        fault["loc"]
        for fault in error.errors(include_url=False, include_context=False)
        if fault["type"] == "int_type" and _is_whole(fault["input"])
    ]
    if not places:
        return None
    changed, found = copy.deepcopy(raw), False
    for place in places:
        found |= _set(changed, place)
    return changed if found else None


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()


def _set(holder: Any, place: tuple[int | str, ...]) -> bool:
    """Make the number there an integer; gives whether it was found, which it is not within unions."""
    *path, last = place
    try:
        for step in path:
            holder = holder[step]
        if not _is_whole(holder[last]):
            return False
        holder[last] = int(holder[last])
    except (KeyError, IndexError, TypeError):
        return False
    return True
