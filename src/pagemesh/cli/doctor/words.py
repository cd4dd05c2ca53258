"""Numbers and lists in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

MOST_NAMES: Final = 6
"""That a sentence lists; of more it gives the number."""

Value = TypeVar("Value", bound=Hashable)


def join(names: Sequence[str]) -> str:
    """ "a, b and c"; of many only the first."""
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def count(number: int, noun: str) -> str:
    """ "1 worker", "2 workers"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def does(names: Sequence[str], verb: str) -> str:
    """The verb as it follows the names: "serves" behind one, "serve" behind several."""
    return f"{verb}s" if len(names) == 1 else verb


def ago(seconds: float) -> str:
    """ "5 s ago", "3 min ago"."""
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"


def odd_ones(values: Mapping[str, Value]) -> dict[str, Value]:
    """Those whose value is not that of most; all when no value has more than another."""
    numbers = Counter(values.values()).most_common()
    if len(numbers) < 2:
        return {}
    has_majority = numbers[0][1] > numbers[1][1]
    return {
        name: value for name, value in values.items() if not has_majority or value != numbers[0][0]
    }


def usual(values: Iterable[Value]) -> Value | None:
    """What most have; None of none."""
    found = Counter(values).most_common(1)
    return found[0][0] if found else None
