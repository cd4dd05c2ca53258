"""Copies of blocks that the next step begins with, collected while it is planned."""

from __future__ import annotations

from pagemesh.scheduler.batch import NO_MOVES, BlockMoves


class MovePlan:
    """The next `BlockMoves` in the making."""

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}  # target: source

    def copy(self, source: int, target: int) -> None:
        """Copy a block of the cache to another; the source must be held until the plan is taken."""
        # A copy of a copy comes from the first block: the second is only there when all copies are done.
        self._copies[target] = self._copies.get(source, source)

    def take(self) -> BlockMoves:
        """Everything since the last call."""
        if not self._copies:
            return NO_MOVES
        moves = BlockMoves(
            copies=tuple((source, target) for target, source in self._copies.items())
        )
        self._copies.clear()
        return moves
