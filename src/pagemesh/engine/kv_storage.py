"""The memory of the paged KV cache, and the bytes of its blocks for those who move them.

Knows where a block lies; it does not know who owns it (`pagemesh.cache`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.engine.interface import BlockLayout
from pagemesh.errors import ConfigError, KvIntegrityError

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


class KvStorage:
    """KV of all layers in one tensor; implements `KvAccess`.

    Zero-filled memory that the system commits page by page as blocks are first written. Different
    threads may read and write different blocks at the same time.
    """

    def __init__(self, layout: BlockLayout, num_blocks: int) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self._block_bytes = layout.num_bytes_per_layer // 2
        # [layer, 2, block, bytes]. numpy's zeros are not touched before use, torch's are.
        self._bytes = np.zeros(
            (layout.num_layers, 2, num_blocks, self._block_bytes), dtype=np.uint8
        )
        elements = torch.from_numpy(self._bytes).view(getattr(torch, layout.dtype))
        self.layers = elements.view(
            layout.num_layers,
            2,
            num_blocks,
            layout.block_size,
            layout.num_kv_heads,
            layout.head_dim,
        ).unbind(0)
        """Per layer: [2 (keys, values), block, slot, kv head, head_dim]."""

    def read(self, block_ids: Sequence[int], first_layer: int, num_layers: int) -> bytes:
        """See `KvAccess.read`. The bytes are copied once."""
        runs = self._runs(block_ids)
        planes = self._planes(first_layer, num_layers)
        return b"".join([plane[begin:end].data for plane in planes for begin, end in runs])

    def write(
        self, block_ids: Sequence[int], first_layer: int, num_layers: int, payload: bytes
    ) -> None:
        """See `KvAccess.write`; KvIntegrityError when the payload's size is not that of the blocks."""
        runs = self._runs(block_ids)
        planes = self._planes(first_layer, num_layers)
        num_bytes = len(planes) * len(block_ids) * self._block_bytes
        if len(payload) != num_bytes:
            raise KvIntegrityError(
                f"KV of {len(block_ids)} blocks in {num_layers} layers has {len(payload)} bytes, "
                f"but must have {num_bytes}"
            )
        source = np.frombuffer(payload, dtype=np.uint8).reshape(-1, self._block_bytes)
        row = 0
        for plane in planes:
            for begin, end in runs:
                plane[begin:end] = source[row : row + end - begin]
                row += end - begin

    def _planes(self, first_layer: int, num_layers: int) -> npt.NDArray[np.uint8]:
        """Keys and values of some layers, [2 * layers, block, bytes]."""
        if not 0 <= first_layer <= first_layer + num_layers <= self.layout.num_layers:
            raise KvIntegrityError(
                f"layers {first_layer} to {first_layer + num_layers - 1} were named, "
                f"but there are {self.layout.num_layers}"
            )
        layers = self._bytes[first_layer : first_layer + num_layers]
        return layers.reshape(-1, self.num_blocks, self._block_bytes)

    def _runs(self, block_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Consecutive ids as [begin, end)."""
        runs: list[tuple[int, int]] = []
        for block_id in block_ids:
            if not 0 <= block_id < self.num_blocks:
                raise KvIntegrityError(
                    f"block {block_id} was named, but there are {self.num_blocks}"
                )
            if runs and runs[-1][1] == block_id:
                runs[-1] = (runs[-1][0], block_id + 1)
            else:
                runs.append((block_id, block_id + 1))
        return runs
