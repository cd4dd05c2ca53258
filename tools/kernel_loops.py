"""How far ahead a compiled kernel loads, read from its PTX."""

from __future__ import annotations

import re
from typing import Final

_LABEL: Final = re.compile(r"^(\$\w+):")
_BRANCH: Final = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+)")
_WAIT: Final = re.compile(r"cp\.async\.wait_group\s+(\d+)")


def copies_in_flight(ptx: str) -> int | None:
    """Groups of asynchronous copies that may be on their way behind a wait in one of its innermost loops: the fewest
    behind any, None where none waits for copies.

    A loop reaches from a label to the last branch back to it. What is waited for before it begins, or when it is over,
    as in a loop over segments around it, says nothing of how far ahead it loads (PTX ISA, cp.async.wait_group).
    """
    lines = ptx.splitlines()
    places = {
        match[1]: number for number, line in enumerate(lines) if (match := _LABEL.match(line))
    }
    loops: dict[int, int] = {}
    for number, line in enumerate(lines):
        for label in _BRANCH.findall(line):
            if places.get(label, number) < number:
                loops[places[label]] = number
    tiles = [
        (first, last)
        for first, last in loops.items()
        if not any(first < other <= last for other in loops)
    ]
    waits = [
        int(match[1])
        for first, last in tiles
        for line in lines[first : last + 1]
        if (match := _WAIT.search(line))
    ]
    return min(waits, default=None)
