"""The bytes of the paged KV cache, for those who move blocks. No torch: two processes share them.

Knows where a block lies; it does not know who owns it (`pagemesh.cache`).
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagemesh.engine.interface import BlockLayout
from pagemesh.engine.kv_ranges import check_blocks, check_layers, check_payload
from pagemesh.errors import ConfigError


def open_memory() -> int:
    """A file descriptor of empty memory that other processes can map; whoever asked for it closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pagemesh-kv")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class KvMemory:
    """KV of all layers; implements `KvAccess`.

    Zero-filled memory that the system commits page by page as blocks are first written. Different
    threads and processes may read and write different blocks at the same time. With a descriptor from
    `open_memory`, everybody who gives the same one sees the same bytes. ConfigError when there is not
    so much memory.
    """

    def __init__(self, layout: BlockLayout, num_blocks: int, descriptor: int | None = None) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self._block_bytes = layout.num_bytes_per_layer // 2
        size = num_blocks * layout.num_bytes
        try:
            if descriptor is not None:
                os.ftruncate(descriptor, size)
            mapping = mmap.mmap(-1 if descriptor is None else descriptor, size)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"the KV cache of {size / 2**30:g} GiB (--kv-cache-memory) cannot be reserved: {error}"
            ) from error
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(mapping, dtype=np.uint8).reshape(
            layout.num_layers, 2, num_blocks, self._block_bytes
        )
        """[layer, 2 (keys, values), block, bytes]."""

    def read(self, block_ids: Sequence[int], first_layer: int, num_layers: int) -> list[memoryview]:
        """See `KvAccess.read`. The pieces are views of the memory."""
        runs = self._runs(block_ids)
        planes = self._planes(first_layer, num_layers)
        return [plane[begin:end].data for plane in planes for begin, end in runs]

    def write(
        self,
        block_ids: Sequence[int],
        first_layer: int,
        num_layers: int,
        payload: bytes | memoryview,
    ) -> None:
        """See `KvAccess.write`; KvIntegrityError when the payload's size is not that of the blocks."""
        check_payload(self.layout, len(block_ids), num_layers, len(payload))
        runs = self._runs(block_ids)
        planes = self._planes(first_layer, num_layers)
        source = np.frombuffer(payload, dtype=np.uint8).reshape(-1, self._block_bytes)
        row = 0
        for plane in planes:
            for begin, end in runs:
                plane[begin:end] = source[row : row + end - begin]
                row += end - begin

    def _planes(self, first_layer: int, num_layers: int) -> npt.NDArray[np.uint8]:
        """Keys and values of some layers, [2 * layers, block, bytes]."""
        check_layers(self.layout, first_layer, num_layers)
        layers = self.bytes[first_layer : first_layer + num_layers]
        return layers.reshape(-1, self.num_blocks, self._block_bytes)

    def _runs(self, block_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Consecutive ids as [begin, end)."""
        check_blocks(self.num_blocks, block_ids)
        runs: list[tuple[int, int]] = []
        for block_id in block_ids:
            if runs and runs[-1][1] == block_id:
                runs[-1] = (runs[-1][0], block_id + 1)
            else:
                runs.append((block_id, block_id + 1))
        return runs
