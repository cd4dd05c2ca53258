"""What one message of blocks carries, and how a prompt's KV is cut into such parts while it is computed.

Knows blocks and layers by their numbers; knows neither messages nor memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from pagemesh.core.kv import BlockLayout

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
"""Larger messages and smaller ones are slower through gRPC in Python; measured at 64 KiB to 16 MiB."""


class KvPart(NamedTuple):
    """What one message carries: a run of blocks of the block table, for a run of layers."""

    first_block: int
    """Position in the block table."""
    num_blocks: int
    first_layer: int
    num_layers: int
    num_tokens: int
    """Token slots of the run that hold KV."""


def num_blocks_of(num_tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens, the last one perhaps partly."""
    return -(-num_tokens // block_size)


class PartCutter:
    """Cuts tokens [start, end) into parts of a limited size, or of one block in one layer.

    Each (block, layer) is in exactly one part, as soon as it is ready: a block when it is full, or when
    the last token is in it. What comes first in the prompt is cut first, so that a stream which breaks
    off leaves whole blocks behind; layers that are ready together travel together.
    """

    def __init__(self, layout: BlockLayout, start: int, end: int, max_part_bytes: int) -> None:
        """`start` is a multiple of the block size; `end` need not be. Nothing is ready yet."""
        self._pairs_per_part = max(1, max_part_bytes // layout.num_bytes_per_layer)
        self._layout = layout
        self._end = end
        self._end_block = num_blocks_of(end, layout.block_size)
        first_block = start // layout.block_size
        # Of each layer: blocks in front of these are ready, or were cut. The first never grows with the
        # layer; the second may: late layers can be cut in larger runs than early ones were.
        self._ready = [first_block] * layout.num_layers
        self._cut = [first_block] * layout.num_layers

    @property
    def is_done(self) -> bool:
        """Whether everything was cut."""
        return min(self._cut) >= self._end_block

    def add_ready(self, num_tokens: int, num_layers: int) -> None:
        """KV of the prompt's tokens [0, num_tokens) is in layers [0, num_layers)."""
        if num_tokens >= self._end:
            end_block = self._end_block
        else:
            end_block = num_tokens // self._layout.block_size
        for layer in range(num_layers):
            self._ready[layer] = max(self._ready[layer], end_block)

    def next_part(self) -> KvPart | None:
        """Cut off the next part; None when nothing that is ready is left."""
        waiting = [i for i, ready in enumerate(self._ready) if self._cut[i] < ready]
        if not waiting:
            return None
        first_block = min(self._cut[layer] for layer in waiting)
        # Neighbours alone: a part is a run of layers, and one between two of them may have been cut.
        first_layer = next(layer for layer in waiting if self._cut[layer] == first_block)
        end_layer = first_layer + 1
        while end_layer in waiting and self._cut[end_layer] == first_block:
            end_layer += 1
        layers = range(first_layer, end_layer)
        end_block = min(self._ready[layer] for layer in layers)
        num_pairs = self._pairs_per_part
        num_blocks = min(end_block - first_block, max(1, num_pairs // len(layers)))
        layers = layers[: max(1, num_pairs // num_blocks)]
        for layer in layers:
            self._cut[layer] = first_block + num_blocks
        last_token = min(self._end, (first_block + num_blocks) * self._layout.block_size)
        return KvPart(
            first_block=first_block,
            num_blocks=num_blocks,
            first_layer=layers[0],
            num_layers=len(layers),
            num_tokens=last_token - first_block * self._layout.block_size,
        )


def cut_into_parts(
    layout: BlockLayout, start: int, end: int, max_part_bytes: int
) -> Iterator[KvPart]:
    """Cut tokens [start, end), all of which are ready; see `PartCutter`."""
    cutter = PartCutter(layout, start, end, max_part_bytes)
    cutter.add_ready(end, layout.num_layers)
    while (part := cutter.next_part()) is not None:
        yield part
