"""KV blocks as one piece."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.core.kv import KvAccess
from pagemesh.kv_transfer.frames import Payload


def read_kv(kv: KvAccess, block_ids: Sequence[int], first_layer: int, num_layers: int) -> bytes:
    """A copy of blocks, in the order of `KvAccess.read`."""
    copy = bytearray(kv.layout.num_bytes_of(len(block_ids), num_layers))
    kv.read(block_ids, first_layer, num_layers, memoryview(copy))
    return bytes(copy)


def payload_of(data: bytes) -> Payload | None:
    """A payload with these bytes; None when there are none."""

    def fill(target: memoryview) -> None:
        target[:] = data

    return Payload(len(data), fill) if data else None
