"""The fewest workers that do, for each ratio of prefill workers to decode workers.

More decode workers at one ratio are taken to be no worse: it gallops to a number that does, and halves the gap to one
that does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

MAX_COST = 2
"""A ratio that needs more than so many times the workers of another one is given up."""


class Size(NamedTuple):
    """Workers of a deployment."""

    decode: int
    prefill: int

    @property
    def total(self) -> int:
        """Of both kinds."""
        return self.decode + self.prefill

    def __str__(self) -> str:
        prefill = f", {self.prefill} prefill" if self.prefill else ""
        return f"{self.decode} decode{prefill}"


class Found(NamedTuple):
    """What one ratio needs."""

    ratio: float
    size: Size | None
    """None where up to `most` workers do not do."""
    most: int


Passes = Callable[[Size], bool]


def search(ratios: Sequence[float], passes: Passes, max_workers: int) -> Iterator[Found]:
    """One after the other; what is found bounds the search for the next ones."""
    best: Size | None = None
    for ratio in dict.fromkeys(ratios):
        most = max_workers if best is None else min(max_workers, MAX_COST * best.total)
        most_decode = _most_decode(ratio, most)
        start = 1 if best is None else max(1, _most_decode(ratio, best.total))
        number = least(lambda n, r=ratio: passes(size_of(r, n)), start, most_decode)  # type: ignore[misc]
        size = None if number is None else trim(size_of(ratio, number), passes)
        if size is not None and (best is None or size.total < best.total):
            best = size
        yield Found(ratio, size, most)


def least(passes: Callable[[int], bool], start: int, most: int) -> int | None:
    """The least number from 1 to `most` that passes; None if none does. Begins at `start`."""
    fails, passing = 0, most + 1
    number, step = min(start, most), 1
    while passing - fails > 1:
        if passes(number):
            passing = number
        else:
            fails = number
        if fails == 0:
            number = max(1, passing - step)
        elif passing > most:
            number = min(most, fails + step)
        else:
            number = (fails + passing) // 2
        step *= 2
    return passing if passing <= most else None


def trim(size: Size, passes: Passes) -> Size:
    """Without the workers of either kind that a round ratio has too many of."""
    while size.prefill:
        fewer = [Size(size.decode, size.prefill - 1)] if size.prefill > 1 else []
        if size.decode > 1:
            fewer.append(Size(size.decode - 1, size.prefill))
        passing = next(filter(passes, fewer), None)
        if passing is None:
            break
        size = passing
    return size


def size_of(ratio: float, num_decode: int) -> Size:
    """So many decode workers, and as many prefill workers as belong to them."""
    return Size(num_decode, math.ceil(ratio * num_decode))


def _most_decode(ratio: float, most: int) -> int:
    """Decode workers of the largest deployment with so many workers; 0 where there is none."""
    number = int(most / (1 + ratio)) + 1
    while number and size_of(ratio, number).total > most:
        number -= 1
    return number
