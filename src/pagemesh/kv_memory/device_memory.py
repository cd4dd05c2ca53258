"""How other engines' processes on this host find a KV cache in a device's memory. No torch."""

from __future__ import annotations

from typing import NamedTuple


class DeviceMemoryName(NamedTuple):
    """Where a KV cache lies: [layer, 2 (keys, values), block, bytes of a block]."""

    process_id: int
    """Of the process that has it; when that ends, nobody may read it any more."""
    handle: bytes
    """Of the allocation, as the device's driver makes and opens it."""
    offset: int
    """Of the cache within the allocation, in bytes."""
    num_blocks: int
