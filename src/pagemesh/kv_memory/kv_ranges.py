"""What of the KV cache a reader or writer of blocks may name. No torch, no memory."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.core.kv import BlockLayout
from pagemesh.errors import KvIntegrityError


def check_layers(layout: BlockLayout, first_layer: int, num_layers: int) -> None:
    """Raise KvIntegrityError unless there are such layers."""
    if not 0 <= first_layer <= first_layer + num_layers <= layout.num_layers:
        raise KvIntegrityError(
            f"layers {first_layer} to {first_layer + num_layers - 1} were named, "
            f"but there are {layout.num_layers}"
        )


def check_blocks(num_blocks: int, block_ids: Sequence[int]) -> None:
    """Raise KvIntegrityError for an id that none of so many blocks has."""
    for block_id in block_ids:
        if not 0 <= block_id < num_blocks:
            raise KvIntegrityError(f"block {block_id} was named, but there are {num_blocks}")


def check_payload(layout: BlockLayout, num_blocks: int, num_layers: int, num_bytes: int) -> None:
    """Raise KvIntegrityError unless a payload has the size of so many blocks in so many layers."""
    expected = layout.num_bytes_of(num_blocks, num_layers)
    if num_bytes != expected:
        raise KvIntegrityError(
            f"KV of {num_blocks} blocks in {num_layers} layers has {num_bytes} bytes, "
            f"but must have {expected}"
        )
