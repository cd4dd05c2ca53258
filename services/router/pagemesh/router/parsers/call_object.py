"""Reads a tool call that is a JSON object with a name and arguments."""

from __future__ import annotations

import enum
import re
from typing import Final

from pagemesh.router.parsers.json_reading import NestedEnd, read_nested, read_string, skip_value
from pagemesh.router.parsers.output import CallOutput
from pagemesh.router.parsers.source import Reading, Source

_NAME: Final = '"name"'
_ARGUMENTS: Final = ('"arguments"', '"parameters"')
_OTHERS: Final = ('"id"', '"type"')
"""Keys with strings that models write besides, and nobody needs."""

CALL_PATTERN: Final = rf"\{{[ \t\r\n]*({'|'.join((_NAME, *_ARGUMENTS, *_OTHERS))})"
"""All that such objects begin with, as a regular expression."""


_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class CallEnd(enum.Enum):
    """What became of text that may be a call."""

    NO_CALL = enum.auto()
    """It is none; the mark is where it was. Otherwise there is no mark any more."""

    COMPLETE = enum.auto()
    """It was read to its end."""

    STOPPED = enum.auto()
    """The text that ends calls came in its arguments."""

    BROKEN = enum.auto()
    """Behind its arguments it did not go on as calls do, and that is content now."""


def read_call(source: Source, output: CallOutput, stop: str = "") -> Reading[CallEnd]:
    """Read a call, behind its opening brace, in either order of its keys.

    Text becomes a call, for good, when it has a name and the beginning of arguments, which are an object.
    Before that the mark must be set, so that what is none can be content as it was written. Keys that
    calls do not have make it none at once, so that other JSON is not held back.
    """
    name: str | None = None
    held: list[str] | None = None
    while True:
        yield from source.skip_space()
        key = yield from source.match(_NAME, *_ARGUMENTS, *_OTHERS)
        if not key or not (yield from _take_colon(source)):
            return CallEnd.NO_CALL
        if key == _NAME and name is None:
            name = yield from read_string(source)
            if not name:
                return CallEnd.NO_CALL
        elif key in _ARGUMENTS and held is None:
            if (yield from source.peek()) != "{":
                return CallEnd.NO_CALL
            if name is not None:
                return (yield from _read_arguments(source, output, name, stop))
            held = []
            if (yield from read_nested(source, held.append, stop=stop)) is not NestedEnd.COMPLETE:
                return CallEnd.NO_CALL
        elif key not in _OTHERS or (yield from read_string(source)) is None:
            return CallEnd.NO_CALL
        if name is not None and held is not None:
            output.begin_call(name)
            output.arguments("".join(held))
            return (yield from _read_rest(source, output))
        yield from source.skip_space()
        if not (yield from source.take(",")):
            return CallEnd.NO_CALL


def is_whole(arguments: str) -> bool:
    """Whether all that was opened in a call's arguments is closed; what is wrong in them otherwise is the model's."""
    rest = _STRING.sub("", arguments)
    return '"' not in rest and all(rest.count(a) <= rest.count(b) for a, b in ("{}", "[]"))


def _take_colon(source: Source) -> Reading[bool]:
    """Read what stands between a key and its value; whether it does."""
    yield from source.skip_space()
    is_there = yield from source.take(":")
    yield from source.skip_space()
    return is_there


def _read_arguments(source: Source, output: CallOutput, name: str, stop: str) -> Reading[CallEnd]:
    source.unmark()
    output.begin_call(name)
    end = yield from read_nested(source, output.arguments, stop=stop)
    if end is NestedEnd.STOPPED:
        return CallEnd.STOPPED
    return (yield from _read_rest(source, output))


def _read_rest(source: Source, output: CallOutput) -> Reading[CallEnd]:
    """The object's end, behind name and arguments."""
    source.mark()
    if (yield from _take_other_keys(source)):
        source.unmark()
        return CallEnd.COMPLETE
    rest = source.since_mark()
    # The end of a call that was cut off is no content.
    if not source.is_over:
        output.content(rest)
    return CallEnd.BROKEN


def _take_other_keys(source: Source) -> Reading[bool]:
    """Read keys and values of any kind up to the closing brace; whether it comes."""
    while True:
        yield from source.skip_space()
        separator = yield from source.match(",", "}")
        if separator != ",":
            return bool(separator)
        yield from source.skip_space()
        if (yield from read_string(source)) is None or not (yield from _take_colon(source)):
            return False
        if not (yield from skip_value(source)):
            return False
