"""The KV cache in a device's memory: its tensors, and whole blocks of it in and out of buffers.

Every method asks the device for work on torch's current stream and waits for nothing. Who owns a block,
and in which order streams touch it, is not known here.
"""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.core.kv import BlockLayout
from pagemesh.engine.accelerator import Event
from pagemesh.errors import ConfigError
from pagemesh.kernels.block_copy import make_block_copier

WORD_BYTES: Final = 8
"""Blocks are moved in words of this size."""


class KvPool:
    """KV of all layers, zeros at first, until it is forgotten."""

    def __init__(self, layout: BlockLayout, num_blocks: int, device: torch.device) -> None:
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
        shape = (layout.block_size, layout.num_kv_heads, layout.head_dim)
        elements = self.planes.view(getattr(torch, layout.dtype))
        self.layers = elements.view(layout.num_layers, 2, num_blocks, *shape).unbind(0)
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
