"""The KV cache as tensors, over the bytes that `kv_memory` keeps."""

from __future__ import annotations

import torch

from pagemesh.engine.interface import BlockLayout
from pagemesh.engine.kv_memory import KvMemory
from pagemesh.errors import ConfigError

_GIB = 1 << 30


def num_blocks_for(layout: BlockLayout, kv_cache_memory_gib: float) -> int:
    """Blocks that fit into the memory; ConfigError when not even one does."""
    num_blocks = int(kv_cache_memory_gib * _GIB) // layout.num_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"--kv-cache-memory is {kv_cache_memory_gib} GiB, but one block of this model "
            f"takes {layout.num_bytes / _GIB:.6f} GiB"
        )
    return num_blocks


class KvStorage(KvMemory):
    """The memory with its tensors."""

    def __init__(self, layout: BlockLayout, num_blocks: int, descriptor: int | None = None) -> None:
        super().__init__(layout, num_blocks, descriptor)
        elements = torch.from_numpy(self.bytes).view(getattr(torch, layout.dtype))
        self.layers = elements.view(
            layout.num_layers,
            2,
            num_blocks,
            layout.block_size,
            layout.num_kv_heads,
            layout.head_dim,
        ).unbind(0)
        """Per layer: [2 (keys, values), block, slot, kv head, head_dim]."""
