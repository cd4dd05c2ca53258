"""Copies whole KV blocks, within the cache and between it and the swap space. For host memory, no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagemesh.core.kv import BlockLayout
from pagemesh.errors import ConfigError
from pagemesh.kv_memory.memory import KvMemory
from pagemesh.scheduler.batch import BlockMoves


def num_swap_blocks_for(layout: BlockLayout, swap_space_gib: float) -> int:
    """Blocks that fit into the swap space; ConfigError when there is one, but not even for a block."""
    num_blocks = int(swap_space_gib * 2**30) // layout.num_bytes
    if swap_space_gib > 0 and num_blocks < 1:
        raise ConfigError(
            f"--swap-space is {swap_space_gib:g} GiB, but one block of this model takes"
            f" {layout.num_bytes / 2**30:.6f} GiB"
        )
    return num_blocks


class BlockMover:
    """Does a batch's moves over one cache, and owns the swap space."""

    def __init__(self, kv: KvMemory, num_swap_blocks: int) -> None:
        """Reserve the swap space; ConfigError when there is not so much memory."""
        num_layers, _, num_blocks, block_bytes = kv.bytes.shape
        self._cache = kv.bytes.reshape(2 * num_layers, num_blocks, block_bytes)
        try:
            # Zeros: the system commits their pages when they are first written.
            self._swap = np.zeros((2 * num_layers, num_swap_blocks, block_bytes), np.uint8)
        except (MemoryError, ValueError) as error:
            size = num_swap_blocks * kv.layout.num_bytes / 2**30
            raise ConfigError(
                f"the swap space of {size:g} GiB (--swap-space) cannot be reserved: {error}"
            ) from error

    def move(self, moves: BlockMoves) -> None:
        """Do all moves; their order is that of `BlockMoves`."""
        _copy(self._cache, self._swap, moves.swap_outs)
        _copy(self._swap, self._cache, moves.swap_ins)
        _copy(self._cache, self._cache, moves.copies)


def _copy(
    source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8], pairs: Sequence[tuple[int, int]]
) -> None:
    """Copy blocks between two [planes, blocks, bytes] as if all were read before any is written."""
    if pairs:
        source_ids, target_ids = np.array(pairs).T
        target[:, target_ids] = source[:, source_ids]
