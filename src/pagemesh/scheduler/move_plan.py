"""Copies of blocks that the next step begins with, collected while it is planned."""

from __future__ import annotations

from collections.abc import Iterable

from pagemesh.scheduler.batch import NO_MOVES, BlockMoves


class MovePlan:
    """The next `BlockMoves` in the making."""

    def __init__(self) -> None:
        self._swap_outs: list[tuple[int, int]] = []
        self._swap_ins: list[tuple[int, int]] = []
        self._copies: dict[int, int] = {}  # target: source

    def swap_out(self, block_ids: Iterable[int], swap_ids: Iterable[int]) -> None:
        """Copy blocks of the cache, which may be freed at once, to the swap space."""
        # Later, a swap block may be one that a swap-in still has to read.
        assert not self._swap_ins, "a step's swap-outs come before its swap-ins"
        self._swap_outs += zip(block_ids, swap_ids, strict=True)

    def swap_in(self, swap_ids: Iterable[int], block_ids: Iterable[int]) -> None:
        """Copy blocks of the swap space, which may be freed at once, back to the cache."""
        self._swap_ins += zip(swap_ids, block_ids, strict=True)

    def copy(self, source: int, target: int) -> None:
        """Copy a block of the cache to another; the source must be held until the plan is taken."""
        # A copy of a copy comes from the first block: the second is only there when all copies are done.
        self._copies[target] = self._copies.get(source, source)

    def take(self) -> BlockMoves:
        """Everything since the last call."""
        if not (self._swap_outs or self._swap_ins or self._copies):
            return NO_MOVES
        copies = tuple((source, target) for target, source in self._copies.items())
        moves = BlockMoves(tuple(self._swap_outs), tuple(self._swap_ins), copies)
        self._swap_outs.clear()
        self._swap_ins.clear()
        self._copies.clear()
        return moves
