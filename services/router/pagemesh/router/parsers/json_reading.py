"""Reads JSON out of a source, as far as tool calls need it.

Values that are handed on are not checked: they are the model's text, and what is wrong in them is for
whoever gets them.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable
from typing import Final

from pagemesh.router.parsers.content import read_before
from pagemesh.router.parsers.source import Reading, Source

_STRUCTURE: Final = '"{}[]'
_IN_STRING: Final = re.compile(r'["\\]')
_BEHIND_SCALAR: Final = re.compile(r"[^A-Za-z0-9+.-]")
_STEPS: Final = {"{": 1, "[": 1, "}": -1, "]": -1}


class NestedEnd(enum.Enum):
    """Why an object or a list was read no further."""

    COMPLETE = enum.auto()
    """It was closed."""

    STOPPED = enum.auto()
    """The text that may not stand in it came, and is read."""

    CUT_OFF = enum.auto()
    """No more text comes."""


def read_nested(
    source: Source, sink: Callable[[str], None], *, stop: str = "", depth: int = 0
) -> Reading[NestedEnd]:
    """Hand an object or a list on as it comes, from its first bracket to the last.

    `stop` ends it outside of its strings: there, text with a meaning of its own is none of the JSON's.
    `depth` brackets were read already.
    """
    structure = re.compile(f"[{re.escape(_STRUCTURE + stop[:1])}]")
    while char := (yield from source.hand_on(sink, structure)):
        if char == '"':
            yield from _read_string(source, sink)
            continue
        if char == stop[:1]:
            if (yield from source.take(stop)):
                return NestedEnd.STOPPED
            # A bracket alone is one of the JSON's.
            if source.take_cut_off([stop], min_chars=2 if char in _STEPS else 1):
                return NestedEnd.CUT_OFF
        sink(source.read())
        depth += _STEPS.get(char, 0)
        if depth == 0:
            return NestedEnd.COMPLETE
    return NestedEnd.CUT_OFF


def read_string(source: Source) -> Reading[str | None]:
    """What a string says; None when none comes, or one that says nothing that can be sent on."""
    if (yield from source.peek()) != '"':
        return None
    parts: list[str] = []
    if not (yield from _read_string(source, parts.append)):
        return None
    try:
        value: str = json.loads("".join(parts), strict=False)
        # A half of a character that needs two escapes cannot be written as UTF-8.
        value.encode()
    except ValueError:
        return None
    return value


def skip_value(source: Source) -> Reading[bool]:
    """Read a value of any kind; whether there was one."""
    char = yield from source.peek()
    if char == '"':
        return (yield from _read_string(source, _nowhere))
    if char in ("{", "["):
        return (yield from read_nested(source, _nowhere)) is NestedEnd.COMPLETE
    return bool((yield from read_before(source, _BEHIND_SCALAR)))


def _read_string(source: Source, sink: Callable[[str], None]) -> Reading[bool]:
    """Hand on a string with its quotes; whether it was closed."""
    sink(source.read())
    while char := (yield from source.hand_on(sink, _IN_STRING)):
        sink(source.read())
        if char == '"':
            return True
        # Whatever follows a backslash does not close the string.
        if (yield from source.peek()):
            sink(source.read())
    return False


def _nowhere(text: str) -> None:
    """Takes what nobody needs."""
