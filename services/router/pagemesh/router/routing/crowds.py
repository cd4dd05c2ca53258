"""Which requests should meet on one worker when nothing else tells them apart: the depth to hash their prompts at.

Hashing the first block would send all conversations with one chat template, or one system prompt, to one worker;
hashing many blocks would send questions about one document to as many workers as there are questions. So the
depth is taken from the traffic: the prompt's blocks are followed as long as a crowd shares them, more than one
worker's part of all requests. The block at which a prompt leaves the crowd names the group that it belongs to.

Only prefixes that are a crowd are followed, in the manner of a trie that grows where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pagemesh.router.routing.candidate import Naming

HALF_LIFE: Final = 1024
"""Requests after which what was counted before counts half."""

MIN_CROWD: Final = 8
"""Requests that a crowd has at least: before, shares say nothing."""

_NUM_SINGLE_STEPS: Final = 64
"""Blocks that are followed one by one; from there on steps grow with the depth, by a sixteenth of it."""


class Crowds:
    """Counts recent requests by the prefixes that many of them share.

    At most `HALF_LIFE` prefixes are remembered that are no crowd, and twice, and their crowds.
    """

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._num_requests = 0
        self._num_until_decay = HALF_LIFE

    def affinity(
        self, block_names: Mapping[Naming, Sequence[bytes]], num_workers: int
    ) -> dict[Naming, bytes]:
        """For each way to name blocks, the name of the group that a prompt belongs to."""
        return {
            naming: self._leaves_at(names, num_workers)
            for naming, names in block_names.items()
            if names
        }

    def add(self, block_names: Mapping[Naming, Sequence[bytes]], num_workers: int) -> None:
        """A prompt was sent to one of so many workers."""
        self._num_requests += 1
        for names in block_names.values():
            for index in _steps(len(names)):
                name = names[index]
                count = self._counts[name] = self._counts.get(name, 0) + 1
                if not self._is_crowd(count, num_workers):
                    break
        self._num_until_decay -= 1
        if not self._num_until_decay:
            self._decay()

    def _leaves_at(self, names: Sequence[bytes], num_workers: int) -> bytes:
        for index in _steps(len(names)):
            if not self._is_crowd(self._counts.get(names[index], 0), num_workers):
                return names[index]
        return names[-1]

    def _is_crowd(self, count: int, num_workers: int) -> bool:
        return count >= MIN_CROWD and count * num_workers > self._num_requests

    def _decay(self) -> None:
        self._num_until_decay = HALF_LIFE
        self._num_requests //= 2
        halves = ((name, count // 2) for name, count in self._counts.items())
        self._counts = {name: half for name, half in halves if half}


def _steps(num_blocks: int) -> Iterator[int]:
    """Indexes of the blocks that are looked at."""
    index = 0
    while index < num_blocks:
        yield index
        index += 1 if index < _NUM_SINGLE_STEPS else index // 16
