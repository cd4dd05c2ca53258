"""The KV cache in a device's memory: its tensors, and whole blocks of it in and out of buffers.

Every method asks the device for work on torch's current stream and waits for nothing. Who owns a block,
and in which order streams touch it, is not known here.
"""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.engine.accelerator import Event
from pagemesh.engine.interface import BlockLayout
from pagemesh.errors import ConfigError

_WORDS: Final = (torch.int64, torch.int32, torch.int16, torch.uint8)
"""Blocks are moved in the widest of these that divides them: torch's indexing copies number by number."""


class KvPool:
    """KV of all layers, zeros at first, until it is forgotten."""

    def __init__(self, layout: BlockLayout, num_blocks: int, device: torch.device) -> None:
        """Allocate it; ConfigError when the device has not so much memory."""
        self.layout = layout
        self.num_blocks = num_blocks
        num_planes = 2 * layout.num_layers
        block_bytes = layout.num_bytes_per_layer // 2
        try:
            memory = torch.zeros(
                num_planes, num_blocks, block_bytes, dtype=torch.uint8, device=device
            )
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the KV cache of {num_blocks * layout.num_bytes / 2**30:g} GiB (--kv-cache-memory,"
                f" --gpu-memory-utilization, --max-model-len) cannot be reserved: {error}"
            ) from error
        word = next(word for word in _WORDS if block_bytes % word.itemsize == 0)
        self.planes = memory.view(word)
        """Keys and values of the layers by turns, in words: [2 * layers, blocks, words of a block]."""
        shape = (layout.block_size, layout.num_kv_heads, layout.head_dim)
        elements = memory.view(getattr(torch, layout.dtype))
        self.layers = elements.view(layout.num_layers, 2, num_blocks, *shape).unbind(0)
        """Per layer: [2 (keys, values), block, slot, kv head, head_dim]."""
        self.moved: Event | None = None
        """Behind the last `BlockMoves`; who reads blocks on another stream than steps do, follows it."""

    def free(self) -> None:
        """Give the memory back at once, whoever still has the tensors; nobody may use them any more."""
        self.planes.untyped_storage().resize_(0)

    def gather(self, block_ids: torch.Tensor, first_plane: int, out: torch.Tensor) -> None:
        """Copy blocks into a buffer [planes, N, words], from `first_plane` on; ids are int64 [N]."""
        planes = self.planes[first_plane : first_plane + len(out)]
        torch.index_select(planes, 1, block_ids, out=out)

    def scatter(self, block_ids: torch.Tensor, first_plane: int, source: torch.Tensor) -> None:
        """The reverse; no id may be there twice."""
        self.planes[first_plane : first_plane + len(source)].index_copy_(1, block_ids, source)
