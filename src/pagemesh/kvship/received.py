"""What of a grant's KV was received and verified; outlives the streams that carried it."""

from __future__ import annotations

from typing import NamedTuple

from pagemesh.core.kv import BlockLayout, KvGrant
from pagemesh.kvship.parts import num_blocks_of


class BlockRun(NamedTuple):
    """Blocks [first_block, end_block) of a block table in layers [first_layer, end_layer)."""

    first_block: int
    end_block: int
    first_layer: int
    end_layer: int

    @property
    def layer_mask(self) -> int:
        """Bit i stands for layer i."""
        return (1 << self.end_layer) - (1 << self.first_layer)


class ReceivedKv:
    """Which blocks of a grant hold verified KV, layer by layer. Not thread-safe."""

    def __init__(self, grant: KvGrant, layout: BlockLayout, num_tokens: int) -> None:
        """`num_tokens` is how many there are in all."""
        self.grant = grant
        self.layout = layout
        self.num_tokens = num_tokens
        self._first_block = grant.num_held_tokens // layout.block_size
        self.end_block = num_blocks_of(num_tokens, layout.block_size)
        self._all_layers = (1 << layout.num_layers) - 1
        self._layers = [0] * (self.end_block - self._first_block)  # bit masks of verified layers
        self._num_complete = 0  # leading blocks, behind the held ones, that have all layers
        # Tokens of earlier streams that their senders did not compute, where this one began, and up to where
        # its sender did not.
        self._num_reused_before = 0
        self._stream_start = self.num_verified_tokens
        self._reused_end = 0

    @property
    def num_verified_blocks(self) -> int:
        """Leading blocks whose KV is there in all layers: held ones, then verified ones."""
        return self._first_block + self._num_complete

    @property
    def num_verified_tokens(self) -> int:
        """Leading tokens whose KV is in the blocks."""
        return min(self.num_verified_blocks * self.layout.block_size, self.num_tokens)

    @property
    def is_complete(self) -> bool:
        """Whether all KV is in the blocks."""
        return self._num_complete == len(self._layers)

    @property
    def num_reused_tokens(self) -> int:
        """Of the received tokens, those whose KV no sender had to compute for the stream that brought it."""
        return self.num_reused_with(min(self._reused_end, self.num_verified_tokens))

    def num_reused_with(self, reused_end: int) -> int:
        """Likewise, when this stream brings KV that its sender did not compute up to this token."""
        return self._num_reused_before + max(
            0, min(reused_end, self.num_tokens) - self._stream_start
        )

    def begin_stream(self) -> int:
        """Forget what lies behind the verified blocks, for a stream that begins there; gives their number.

        Another sender sends whole blocks. So each (block, layer) comes once in a stream, and a block
        that counts as verified is never written again.
        """
        self._num_reused_before = self.num_reused_tokens
        self._stream_start = self.num_verified_tokens
        self._reused_end = 0
        for index in range(self._num_complete, len(self._layers)):
            self._layers[index] = 0
        return self.num_verified_blocks

    def overlaps(self, run: BlockRun) -> bool:
        """Whether any block of the run, which lies in the grant, has one of its layers already."""
        return any(layers & run.layer_mask for layers in self._layers[self._indices(run)])

    def add(self, run: BlockRun, reused_end: int) -> None:
        """Count a run as verified: its KV is in its blocks.

        That of tokens in front of `reused_end` was not computed for the stream.
        """
        self._reused_end = max(self._reused_end, reused_end)
        indices = self._indices(run)
        for index in range(indices.start, indices.stop):
            self._layers[index] |= run.layer_mask
        while not self.is_complete and self._layers[self._num_complete] == self._all_layers:
            self._num_complete += 1

    def block_ids(self, run: BlockRun) -> tuple[int, ...]:
        """Where a run belongs."""
        return self.grant.block_ids[run.first_block : run.end_block]

    def _indices(self, run: BlockRun) -> slice:
        return slice(run.first_block - self._first_block, run.end_block - self._first_block)
