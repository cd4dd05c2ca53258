"""Which requests should meet on one worker when nothing else tells them apart: the depth to hash their prompts at.

Hashing the first block would send all conversations with one chat template, or one system prompt, to one worker;
hashing many blocks would send questions about one document to as many workers as there are questions. So the
depth is taken from the traffic: the prompt's blocks are followed as long as a crowd shares them, more than one
worker's part of all requests. The block at which a prompt leaves the crowd names the group that it belongs to.

The end of the crowd is looked for in steps that double, and then by halves. Only what is looked at is counted, each
prefix from the moment on at which it was first seen; so a crowd is known some hundred requests after its first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from pagemesh.router.routing.candidate import Naming

HALF_LIFE: Final = 1024
"""Requests after which what was counted before counts half."""

MIN_CROWD: Final = 8
"""Requests that a crowd has at least: before, shares say nothing."""


class _Seen(NamedTuple):
    """A prefix."""

    num_requests: int
    """That began with it."""
    since: float
    """Number of the request from which on they were counted."""


class Place(NamedTuple):
    """Where a prompt leaves the crowd."""

    num_crowd_blocks: int
    """Leading blocks that a crowd shares."""
    group: bytes
    """The name of the group that the prompt belongs to: of the block behind those, else of the last one."""


class Crowds:
    """Counts recent requests by the prefixes that many of them share.

    Of each request of the last two `HALF_LIFE`, at most 14 prefixes are remembered that are no crowd.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, _Seen] = {}
        self._seen_before: dict[bytes, _Seen] = {}
        """Until `HALF_LIFE` was reached the last time, and not since."""
        self._num_requests = 0

    def places(
        self, block_names: Mapping[Naming, Sequence[bytes]], num_workers: int
    ) -> dict[Naming, Place]:
        """For each way to name blocks, where a prompt leaves the crowd."""
        return {
            naming: self._leaves_at(names, num_workers)
            for naming, names in block_names.items()
            if names
        }

    def add(self, block_names: Mapping[Naming, Sequence[bytes]], num_workers: int) -> None:
        """A prompt was sent to one of so many workers."""
        for names in block_names.values():
            _end_of_crowd(len(names), partial(self._joins, names, num_workers))
        self._num_requests += 1
        if self._num_requests % HALF_LIFE == 0:
            self._seen_before, self._seen = self._seen, {}

    def _leaves_at(self, names: Sequence[bytes], num_workers: int) -> Place:
        end = _end_of_crowd(len(names), partial(self._is_crowd, names, num_workers))
        # A prompt without anything of its own goes by all that it has.
        return Place(end, names[min(end, len(names) - 1)])

    def _joins(self, names: Sequence[bytes], num_workers: int, index: int) -> bool:
        """Count a prompt at one of its blocks; gives whether a crowd shares it."""
        seen = self._find(names[index]) or _Seen(0, self._num_requests)
        self._seen[names[index]] = seen._replace(num_requests=seen.num_requests + 1)
        return self._is_crowd(names, num_workers, index)

    def _is_crowd(self, names: Sequence[bytes], num_workers: int, index: int) -> bool:
        seen = self._find(names[index])
        if seen is None or seen.num_requests < MIN_CROWD:
            return False
        return seen.num_requests * num_workers > self._num_requests - seen.since

    def _find(self, name: bytes) -> _Seen | None:
        """What is known of a prefix; what was counted before the last `HALF_LIFE` weighs half."""
        seen = self._seen.get(name)
        if seen is None and (before := self._seen_before.get(name)) is not None:
            then = self._num_requests // HALF_LIFE * HALF_LIFE
            seen = _Seen(before.num_requests // 2, (then + before.since) / 2)
        return seen


def _end_of_crowd(num_blocks: int, is_crowd: Callable[[int], bool]) -> int:
    """Index of the first block that no crowd shares; `num_blocks` if a crowd shares all.

    Blocks are looked at that do not depend on the prompt's length: others' counts must be found there.
    """
    last, index = -1, 0
    while index < num_blocks and is_crowd(index):
        last, index = index, max(1, 2 * index)
    while index - last > 1:
        middle = (last + index) // 2
        if middle < num_blocks and is_crowd(middle):
            last = middle
        else:
            index = middle
    return min(index, num_blocks)
