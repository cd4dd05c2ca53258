"""The KV cache as tensors, over the bytes that `kv_memory` keeps."""

from __future__ import annotations

import torch

from pagemesh.core.kv import BlockLayout
from pagemesh.kv_memory.memory import KvMemory


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
