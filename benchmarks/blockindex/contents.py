"""Chains of blocks as conversations leave them in workers' caches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

NAME_BYTES = 16
CHAIN = 128
"""Blocks of a conversation: 2,048 tokens."""


class Holding(NamedTuple):
    """Blocks that a worker stores at once."""

    worker: int
    names: list[bytes]


def new_chain(num_blocks: int = CHAIN) -> list[bytes]:
    """Hashes of blocks that nobody has."""
    packed = os.urandom(NAME_BYTES * num_blocks)
    return [packed[at : at + NAME_BYTES] for at in range(0, len(packed), NAME_BYTES)]


def holdings(num_blocks: int, num_workers: int, chains_at_once: int) -> Iterator[Holding]:
    """Until there are so many different blocks.

    Each chain is held by one worker, and its first half by a second one for every fourth chain.
    """
    for number in range(num_blocks // (CHAIN * chains_at_once)):
        names = new_chain(CHAIN * chains_at_once)
        yield Holding(number % num_workers, names)
        shared = [
            name
            for start in range(0, len(names), 4 * CHAIN)
            for name in names[start : start + CHAIN // 2]
        ]
        if number % max(1, 4 // chains_at_once) == 0:
            yield Holding((7 * number + 3) % num_workers, shared)
