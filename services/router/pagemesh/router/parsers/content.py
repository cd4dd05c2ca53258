"""Reads text up to where something else begins."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pagemesh.router.parsers.source import Reading, Source


def read_until(
    source: Source,
    sink: Callable[[str], None],
    openings: Sequence[str],
    closings: Sequence[str] = (),
) -> Reading[str]:
    """Hand text on up to the first of the markers, which is read and returned; "" at the end.

    Text is held back only while it may be a marker's beginning. Where the answer is cut off, an opening's
    beginning is text, a closing's is nothing.
    """
    markers = (*openings, *closings)
    first = re.compile(f"[{''.join(re.escape(marker[0]) for marker in markers)}]")
    while (yield from source.hand_on(sink, first)):
        if marker := (yield from source.match(*markers)):
            return marker
        if not source.take_cut_off(closings):
            sink(source.read())
    return ""


def read_before(source: Source, stop: re.Pattern[str]) -> Reading[str]:
    """Read up to a character that stops, or to the end."""
    parts: list[str] = []
    yield from source.hand_on(parts.append, stop)
    return "".join(parts)
