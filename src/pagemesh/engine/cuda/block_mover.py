"""Does a batch's block moves on a device: within the cache, and to and from pinned host memory.

The blocks themselves are read and written on the steps' stream, in the order in which moves and steps were
asked for, so no step ever sees a block half moved. What takes long, the way over PCIe, is on a stream of
its own, between the host and a buffer on the device: it goes on beside the steps. A swap-out only holds
up the steps behind it while its blocks are copied into the buffer, a swap-in until the host's copy is
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from pagemesh.engine.accelerator import Accelerator, Event
from pagemesh.engine.cuda.kv_pool import KvPool
from pagemesh.engine.cuda.transfers import Transfers
from pagemesh.scheduler.batch import BlockMoves

BUFFER_BYTES: Final = 64 << 20
"""Of each of the two buffers on the device: some milliseconds over PCIe."""

_PATIENCE: Final = 60.0

Pairs = Sequence[tuple[int, int]]


def buffer_blocks(block_bytes: int, num_swap_blocks: int) -> int:
    """Blocks that a buffer takes, each over all layers; 0 without a swap space."""
    return min(max(1, BUFFER_BYTES // block_bytes), num_swap_blocks)


class DeviceBlockMover:
    """Does moves over one pool, for the thread that asks for the steps."""

    def __init__(self, pool: KvPool, accelerator: Accelerator, swap_space: torch.Tensor) -> None:
        """`swap_space`, uint8 [swap blocks, bytes], is pinned; a block's layers lie side by side."""
        self._pool = pool
        self._steps = accelerator
        self._copies = accelerator.beside()
        self._transfers = Transfers(accelerator, _PATIENCE)
        num_planes, _, num_words = pool.planes.shape
        swap_blocks = swap_space.view(pool.planes.dtype)
        self._swap = swap_blocks.view(len(swap_space), num_planes, num_words)
        num_blocks = buffer_blocks(pool.layout.num_bytes, len(swap_space))
        self._buffers = [_Buffer(pool, num_blocks) for _ in range(2)]

    def move(self, moves: BlockMoves) -> None:
        """Ask for all moves, in the order of `BlockMoves`; waits for none.

        Streams that follow `KvPool.moved` find them done.
        """
        for buffer, pairs in self._portions(moves.swap_outs):
            self._swap_out(buffer, pairs)
        for buffer, pairs in self._portions(moves.swap_ins):
            self._swap_in(buffer, pairs)
        with self._steps.computing():
            if moves.copies:
                sources, targets = self._ids(moves.copies)
                self._pool.copy(sources, targets)
            self._pool.moved = self._steps.record()

    def _portions(self, pairs: Pairs) -> list[tuple[_Buffer, Pairs]]:
        """What fits into a buffer at once, with the buffers by turns."""
        size = max(1, self._buffers[0].num_blocks)
        begins = range(0, len(pairs), size)
        return [
            (self._buffers[index % len(self._buffers)], pairs[begin : begin + size])
            for index, begin in enumerate(begins)
        ]

    def _swap_out(self, buffer: _Buffer, pairs: Pairs) -> None:
        with self._steps.computing():
            buffer.follow(self._steps)
            sources, _ = self._ids(pairs)
            rows = buffer.rows[: len(pairs)]
            self._pool.copy_out(sources, rows)
            filled = self._steps.record()
        with self._copies.computing():
            self._copies.follow(filled)
            for row, (_, swap_id) in zip(rows, pairs, strict=True):
                self._copies.copy(self._swap[swap_id], row)
            buffer.busy_until = self._copies.record()

    def _swap_in(self, buffer: _Buffer, pairs: Pairs) -> None:
        rows = buffer.rows[: len(pairs)]
        with self._copies.computing():
            buffer.follow(self._copies)
            for row, (swap_id, _) in zip(rows, pairs, strict=True):
                self._copies.copy(row, self._swap[swap_id])
            filled = self._copies.record()
        with self._steps.computing():
            self._steps.follow(filled)
            _, targets = self._ids(pairs)
            self._pool.copy_in(rows, targets)
            buffer.busy_until = self._steps.record()

    def _ids(self, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources and targets on the device, int64 [N] each."""
        # Two arrays: a row of one array would begin at 16 bytes for even numbers only, and kernels
        # are compiled for either kind of address.
        columns = np.array(pairs, np.int64).T
        sources, targets = self._transfers.upload([column.copy() for column in columns])
        return sources, targets


class _Buffer:
    """Whole blocks between the cache and the host, on the device."""

    def __init__(self, pool: KvPool, num_blocks: int) -> None:
        num_planes, _, num_words = pool.planes.shape
        self.num_blocks = num_blocks
        shape = (num_blocks, num_planes, num_words)
        self.rows = torch.empty(shape, dtype=pool.planes.dtype, device=pool.planes.device)
        self.busy_until: Event | None = None
        """Behind whatever last read or wrote it, on either stream."""

    def follow(self, accelerator: Accelerator) -> None:
        """Have what is asked next wait until the buffer may be written again."""
        if self.busy_until is not None:
            accelerator.follow(self.busy_until)
