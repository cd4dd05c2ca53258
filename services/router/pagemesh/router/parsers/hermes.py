"""Tool calls of Hermes 2 and 3 and of Qwen 2.5 and 3: JSON objects in `<tool_call>` tags, any number.

Each has tags of its own, but models forget them between two.
"""

from __future__ import annotations

from typing import Final

from pagemesh.router.parsers.call_object import CallEnd, read_call
from pagemesh.router.parsers.content import read_until
from pagemesh.router.parsers.output import CallOutput
from pagemesh.router.parsers.source import Reading, Source
from pagemesh.router.parsers.tool_format import ToolFormat, WrittenCalls

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


def _read(source: Source, output: CallOutput) -> Reading[None]:
    is_open = False
    while marker := (
        yield from read_until(source, output.content, (OPEN,), (CLOSE,) if is_open else ())
    ):
        if marker == CLOSE:
            output.close_call()
        is_open = marker == OPEN and (yield from _read_block(source, output))


def _read_block(source: Source, output: CallOutput) -> Reading[bool]:
    """Read what follows an opening tag; whether there was a call, whose closing tag is still to come."""
    before, end = OPEN, CallEnd.COMPLETE
    while end is CallEnd.COMPLETE:
        source.mark()
        yield from source.skip_space()
        is_object = yield from source.take("{")
        if not is_object and not before:
            output.separate(source.since_mark())
            return True
        end = (yield from read_call(source, output, CLOSE)) if is_object else CallEnd.NO_CALL
        if end is CallEnd.NO_CALL:
            output.content(before + source.since_mark())
            return not before
        before = ""
    return end is CallEnd.BROKEN


_WRITTEN: Final = WrittenCalls(
    opening=f'{OPEN}\n{{"name": "',
    middle='", "arguments": ',
    closing=f"}}\n{CLOSE}",
    separator="\n",
    is_name_json=True,
)

HERMES: Final = ToolFormat(_read, (_WRITTEN,), frozenset({OPEN, CLOSE}), OPEN)
