"""KV blocks as one piece."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.engine.interface import KvAccess


def read_kv(kv: KvAccess, block_ids: Sequence[int], first_layer: int, num_layers: int) -> bytes:
    """A copy of what `KvAccess.read` gives, which later writes do not change."""
    return b"".join(kv.read(block_ids, first_layer, num_layers))
