"""The KV cache in a device's memory: its tensors, whole blocks of it in and out of buffers, a batch's block moves.

Every method asks the device for work on torch's current stream and waits for nothing. Who owns a block,
and in which order streams touch it, is not known here.

The blocks of a batch's moves are read and written on the steps' stream, in the order in which moves and steps were
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

from pagemesh.core.kv import KvLayout
from pagemesh.engine.accelerator import Accelerator, Event
from pagemesh.engine.cuda.transfers import Transfers
from pagemesh.errors import ConfigError
from pagemesh.kernels.block_copy import make_block_copier
from pagemesh.scheduler.batch import BlockMoves

WORD_BYTES: Final = 8
"""Blocks are moved in words of this size."""


class KvPool:
    """KV of all layers, zeros at first, until it is forgotten."""

    def __init__(self, layout: KvLayout, num_blocks: int, device: torch.device) -> None:
        """Allocate it; ConfigError when the device has not so much memory, or blocks are no whole words."""
        self.layout = layout
        self.num_blocks = num_blocks
        num_planes = 2 * layout.num_layers
        block_bytes = layout.num_bytes_per_layer // 2
        if block_bytes % WORD_BYTES:
            raise ConfigError(
                f"--block-size is {layout.block_size}, but on {device.type} devices the keys of a block"
                f" must be whole words of {WORD_BYTES} bytes, and here they are {block_bytes} bytes"
            )
        num_words = block_bytes // WORD_BYTES
        try:
            self.planes = torch.zeros(
                num_planes, num_blocks, num_words, dtype=torch.int64, device=device
            )
            """Keys and values of the layers by turns, in words: [2 * layers, blocks, words of a block]."""
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the KV cache of {num_blocks * layout.num_bytes / 2**30:g} GiB (--kv-cache-memory,"
                f" --gpu-memory-utilization, --max-model-len) cannot be reserved: {error}"
            ) from error
        elements = self.planes.view(getattr(torch, layout.dtype))
        num_layers, *heads = layout.group
        shape = (num_layers, 2, num_blocks, layout.block_size, *heads)
        self.layers = elements.view(shape).unbind(0)
        """Per layer: [2 (keys, values), block, slot, kv head, head_dim]."""
        self._copier = make_block_copier(device)
        self.moved: Event | None = None
        """Behind the last `BlockMoves`; who reads blocks on another stream than steps do, follows it."""

    def free(self) -> None:
        """Give the memory back at once, whoever still has the tensors; nobody may use them any more."""
        self.planes.untyped_storage().resize_(0)

    def gather(self, block_ids: torch.Tensor, first_plane: int, out: torch.Tensor) -> None:
        """Copy blocks into a buffer [planes, N, words], from `first_plane` on; ids are int64 [N]."""
        self._copier.gather(self.planes[first_plane : first_plane + len(out)], block_ids, out)

    def scatter(self, block_ids: torch.Tensor, first_plane: int, source: torch.Tensor) -> None:
        """The reverse; no id may be there twice."""
        planes = self.planes[first_plane : first_plane + len(source)]
        self._copier.scatter(source, planes, block_ids)

    def copy(self, source_ids: torch.Tensor, target_ids: torch.Tensor) -> None:
        """Copy blocks within the pool; no target is a source or there twice."""
        self._copier.copy(self.planes, source_ids, self.planes, target_ids)

    def sum(self, block_ids: torch.Tensor, planes: range) -> torch.Tensor:
        """The checksum of blocks in some planes, int64 [1]; see `BlockCopier`."""
        return self._copier.sum(self.planes[planes.start : planes.stop], block_ids)

    def copy_from(
        self, other: torch.Tensor, source_ids: torch.Tensor, block_ids: torch.Tensor, planes: range
    ) -> torch.Tensor:
        """Fill blocks, in some planes, with those of another pool's `planes`; gives their checksum."""
        part = slice(planes.start, planes.stop)
        return self._copier.copy_and_sum(other[part], source_ids, self.planes[part], block_ids)

    def copy_out(self, block_ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Copy blocks into rows [N, planes, words], a block's planes side by side."""
        self._copier.copy(self.planes, block_ids, rows.transpose(0, 1), _in_order(rows))

    def copy_in(self, rows: torch.Tensor, block_ids: torch.Tensor) -> None:
        """The reverse; no id may be there twice."""
        self._copier.copy(rows.transpose(0, 1), _in_order(rows), self.planes, block_ids)


def _in_order(rows: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(rows), device=rows.device)


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
