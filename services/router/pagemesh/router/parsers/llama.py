"""Tool calls of Llama 3.1 to 4: JSON objects, with `;` between them or in a list, perhaps behind `<|python_tag|>`."""

from __future__ import annotations

from typing import Final

from pagemesh.router.parsers.call_object import CALL_PATTERN, CallEnd, read_call
from pagemesh.router.parsers.content import read_until
from pagemesh.router.parsers.json_reading import read_nested
from pagemesh.router.parsers.output import CallOutput
from pagemesh.router.parsers.source import Reading, Source
from pagemesh.router.parsers.tool_format import ToolFormat, WrittenCalls

TAG: Final = "<|python_tag|>"


def _read(source: Source, output: CallOutput) -> Reading[None]:
    in_list = False
    while marker := (yield from read_until(source, output.content, (TAG, "[", "{"))):
        source.mark()
        depth = 1
        is_object = marker == "{"
        if marker == TAG:
            yield from source.skip_space()
        if marker == "[" or (marker == TAG and (yield from source.take("["))):
            in_list, depth = True, 2
            yield from source.skip_space()
        is_object = is_object or (yield from source.take("{"))
        end = (yield from read_call(source, output)) if is_object else CallEnd.NO_CALL
        if end is CallEnd.NO_CALL:
            text = source.since_mark()
            output.content(marker + text)
            # Calls are no parts of other JSON; only a brace in a text does not end at another one.
            if is_object and ('"' in text or (yield from source.peek()) == '"'):
                yield from read_nested(source, output.content, depth=depth)
            in_list = False
        elif end is CallEnd.COMPLETE:
            source.mark()
            yield from source.skip_space()
            separator = yield from source.match(*((",", "]") if in_list else (";",)))
            in_list = in_list and separator == ","
            output.separate(source.since_mark())


_WRITTEN: Final = WrittenCalls(
    opening='{"name": "',
    middle='", "parameters": ',
    closing="}",
    separator="; ",
    is_name_json=True,
)

LLAMA: Final = ToolFormat(_read, (_WRITTEN,), frozenset({TAG}), None, CALL_PATTERN)
