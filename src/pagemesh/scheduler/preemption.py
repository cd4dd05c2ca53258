"""How a preempted request's KV comes back: computed again, or kept in the swap space meanwhile."""

from __future__ import annotations

from typing import Final, Protocol

from pagemesh.scheduler.batch import Batch
from pagemesh.scheduler.step_costs import StepCosts

MEMORY: Final = 0.9
"""What a measurement still counts when the next one is there: about the last ten decide."""

PRIOR_SECONDS: Final = 0.005
"""Weight of the assumed speed of copies, as if it had been measured for so long."""

PRIOR_BYTES_PER_SECOND: Final = 1e9
"""Assumed speed of copies before any was measured; on the low side for host memory."""


class PreemptionPolicy(Protocol):
    """Chooses between swap and recompute, and is told what steps cost."""

    def should_swap(self, num_tokens: int, num_blocks: int) -> bool:
        """Whether to swap a request that has KV of so many tokens in so many blocks.

        Asked only when the swap space has room; without it, the KV is computed again.
        """
        ...

    def observe(self, batch: Batch, move_seconds: float) -> None:
        """A step took so long for its moves."""
        ...


class CheaperWay:
    """Implements `PreemptionPolicy`: whichever is predicted to take less time, from measured rates.

    To compute again takes what a prompt of so many tokens does; to swap takes two copies of the blocks.
    (vLLM's first scheduler had the two ways as fixed modes; the choice by cost is InferCept's, Abhyankar
    et al. 2024.) What the prefix cache may still hold by then is not counted: the cache is full, or
    nobody would be preempted.
    """

    def __init__(self, num_block_bytes: int, costs: StepCosts) -> None:
        self._num_block_bytes = num_block_bytes
        self._costs = costs
        self._num_moved_bytes = 0.0
        self._move_seconds = 0.0

    def should_swap(self, num_tokens: int, num_blocks: int) -> bool:
        """See `PreemptionPolicy`. Until a prefill was measured: swap."""
        num_bytes = 2 * num_blocks * self._num_block_bytes
        swap_seconds = num_bytes / self._move_rate()
        recompute_seconds = self._costs.rate().seconds(num_tokens, 0)
        if recompute_seconds is None:
            return True
        # A bad measurement must not stand for ever because nothing is swapped any more.
        self._num_moved_bytes *= MEMORY
        self._move_seconds *= MEMORY
        return swap_seconds < recompute_seconds

    def observe(self, batch: Batch, move_seconds: float) -> None:
        moves = batch.moves
        num_moved = len(moves.swap_outs) + len(moves.swap_ins) + len(moves.copies)
        if num_moved:
            self._num_moved_bytes = (
                MEMORY * self._num_moved_bytes + num_moved * self._num_block_bytes
            )
            self._move_seconds = MEMORY * self._move_seconds + move_seconds

    def _move_rate(self) -> float:
        """Bytes per second."""
        num_bytes = self._num_moved_bytes + PRIOR_SECONDS * PRIOR_BYTES_PER_SECOND
        return num_bytes / (self._move_seconds + PRIOR_SECONDS)
