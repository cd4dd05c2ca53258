"""Tool calls of DeepSeek V3 and R1, and of V3.1, which writes less around name and arguments."""

from __future__ import annotations

import re
from typing import Final

from pagemesh.router.parsers.content import read_before, read_until
from pagemesh.router.parsers.json_reading import NestedEnd, read_nested
from pagemesh.router.parsers.output import CallOutput
from pagemesh.router.parsers.source import Reading, Source
from pagemesh.router.parsers.tool_format import ToolFormat, WrittenCalls

CALLS: Final = "<｜tool▁calls▁begin｜>"
CALL: Final = "<｜tool▁call▁begin｜>"
SEPARATOR: Final = "<｜tool▁sep｜>"
CALL_END: Final = "<｜tool▁call▁end｜>"
CALLS_END: Final = "<｜tool▁calls▁end｜>"
FENCE: Final = "```"

_BEHIND_NAME: Final = re.compile(r"[\n<{`]")


def _read(source: Source, output: CallOutput) -> Reading[None]:
    ends: tuple[str, ...] = ()
    while marker := (yield from read_until(source, output.content, (CALLS, CALL), ends)):
        if marker in (CALLS, CALL):
            ends = yield from _read_call(source, output, marker)
        else:
            output.close_call()
            ends = ends[ends.index(marker) + 1 :]


def _read_call(source: Source, output: CallOutput, marker: str) -> Reading[tuple[str, ...]]:
    """Read a call behind one of its markers; what closes it, in this order."""
    source.mark()
    yield from source.skip_space()
    is_call = marker == CALL or (yield from source.take(CALL))
    name = (yield from _read_name(source)) if is_call else None
    if not name:
        output.content(marker + source.since_mark())
        return ()
    source.unmark()
    output.begin_call(name)
    end = yield from read_nested(source, output.arguments, stop=CALL_END)
    return (FENCE, CALL_END, CALLS_END) if end is NestedEnd.COMPLETE else (CALLS_END,)


def _read_name(source: Source) -> Reading[str | None]:
    """The tool's name, up to the arguments; None when they do not come."""
    first = yield from read_before(source, _BEHIND_NAME)
    if not (yield from source.take(SEPARATOR)):
        return None
    second = yield from read_before(source, _BEHIND_NAME)
    yield from source.skip_space()
    if (yield from source.take(FENCE)):
        yield from source.take("json")
        yield from source.skip_space()
    if (yield from source.peek()) != "{":
        return None
    # The first is "function" where the second is a name.
    return (second.strip() or first.strip()) or None


_V3: Final = WrittenCalls(
    before=CALLS,
    opening=f"{CALL}function{SEPARATOR}",
    middle=f"\n{FENCE}json\n",
    closing=f"\n{FENCE}{CALL_END}",
    separator="\n",
    after=CALLS_END,
)
_V31: Final = WrittenCalls(
    before=CALLS,
    opening=CALL,
    middle=SEPARATOR,
    closing=CALL_END,
    separator="",
    after=CALLS_END,
)
_MARKERS: Final = frozenset({CALLS, CALL, SEPARATOR, CALL_END, CALLS_END})

DEEPSEEK_V3: Final = ToolFormat(_read, (_V3,), _MARKERS, CALLS)
DEEPSEEK_V31: Final = ToolFormat(_read, (_V31,), _MARKERS, CALLS)
