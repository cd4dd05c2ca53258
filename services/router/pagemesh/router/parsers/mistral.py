"""Tool calls of Mistral's models, behind `[TOOL_CALLS]`.

Older ones write one list of objects, newer ones the marker again for each call, then the tool's name and
its arguments, sometimes with `[CALL_ID]` and `[ARGS]` before these.
"""

from __future__ import annotations

import re
from typing import Final

from pagemesh.router.parsers.call_object import CallEnd, read_call
from pagemesh.router.parsers.content import read_before, read_until
from pagemesh.router.parsers.json_reading import NestedEnd, read_nested
from pagemesh.router.parsers.output import CallOutput
from pagemesh.router.parsers.source import Reading, Source
from pagemesh.router.parsers.tool_format import ToolFormat, WrittenCalls

CALLS: Final = "[TOOL_CALLS]"
CALL_ID: Final = "[CALL_ID]"
ARGS: Final = "[ARGS]"

_BEHIND_WORD: Final = re.compile(r"""[\s\[\]{}"',;()]""")


def _read(source: Source, output: CallOutput) -> Reading[None]:
    marker = yield from read_until(source, output.content, (CALLS,))
    while marker:
        source.mark()
        yield from source.skip_space()
        if (yield from source.take(CALLS)):
            # The first one was none of its own.
            output.content(CALLS + source.since_mark().removesuffix(CALLS), len(CALLS))
        elif not (yield from _read_calls(source, output)):
            marker = yield from read_until(source, output.content, (CALLS,))


def _read_calls(source: Source, output: CallOutput) -> Reading[bool]:
    """Read what stands behind a marker; whether the next one came in the middle of it."""
    if (yield from source.take("[")):
        return (yield from _read_list(source, output))
    return (yield from _read_named(source, output))


def _read_list(source: Source, output: CallOutput) -> Reading[bool]:
    """Read objects behind their opening bracket."""
    before = CALLS
    while True:
        yield from source.skip_space()
        is_object = yield from source.take("{")
        end = (yield from read_call(source, output, CALLS)) if is_object else CallEnd.NO_CALL
        if end is CallEnd.NO_CALL:
            rest = before + source.since_mark()
            # What separates calls that were read is no content where the answer is cut off.
            if not (source.is_over and before == ""):
                output.content(rest)
            return False
        if end is not CallEnd.COMPLETE:
            return end is CallEnd.STOPPED
        before = ""
        source.mark()
        yield from source.skip_space()
        separator = yield from source.match(",", "]")
        if separator != ",":
            rest = source.since_mark()
            if not separator and not source.is_over:
                output.content(rest)
            return False


def _read_named(source: Source, output: CallOutput) -> Reading[bool]:
    """Read a name and arguments."""
    name = yield from read_before(source, _BEHIND_WORD)
    yield from source.skip_space()
    if (yield from source.take(CALL_ID)):
        yield from read_before(source, _BEHIND_WORD)
    yield from source.take(ARGS)
    yield from source.skip_space()
    if not name or (yield from source.peek()) != "{":
        output.content(CALLS + source.since_mark())
        return False
    source.unmark()
    output.begin_call(name)
    return (yield from read_nested(source, output.arguments, stop=CALLS)) is NestedEnd.STOPPED


def _short_id(random_hex: str) -> str:
    """Chat templates of Mistral take only ids of nine letters and digits."""
    return random_hex[:9]


_NAMED: Final = WrittenCalls(opening=CALLS, middle=ARGS, closing="", separator="", needs=ARGS)
_LIST: Final = WrittenCalls(
    before=f"{CALLS}[",
    opening='{"name": "',
    middle='", "arguments": ',
    closing="}",
    separator=", ",
    after="]",
    is_name_json=True,
)

MISTRAL: Final = ToolFormat(
    _read, (_NAMED, _LIST), frozenset({CALLS, CALL_ID, ARGS}), CALLS, call_id=_short_id
)
