"""What of a grant's KV was received and verified; outlives the streams that carried it."""

from __future__ import annotations

from typing import NamedTuple

from pagemesh.engine.interface import BlockLayout, KvGrant
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
        """`num_tokens` is the prompt's length."""
        self.grant = grant
        self.layout = layout
        self.num_tokens = num_tokens
        self._first_block = grant.num_held_tokens // layout.block_size
        self.end_block = num_blocks_of(num_tokens, layout.block_size)
        self._all_layers = (1 << layout.num_layers) - 1
        self._layers = [0] * (self.end_block - self._first_block)  # bit masks of verified layers
        self._num_complete = 0  # leading blocks, behind the held ones, that have all layers

    @property
    def num_verified_blocks(self) -> int:
        """Leading blocks of the prompt whose KV is there in all layers: held ones, then verified ones."""
        return self._first_block + self._num_complete

    @property
    def num_verified_tokens(self) -> int:
        """Leading prompt tokens whose KV is in the blocks."""
        return min(self.num_verified_blocks * self.layout.block_size, self.num_tokens)

    @property
    def is_complete(self) -> bool:
        """Whether the whole prompt's KV is in the blocks."""
        return self._num_complete == len(self._layers)

    def begin_stream(self) -> int:
        """Forget what lies behind the verified blocks, for a stream that begins there; gives their number.

        Another sender sends whole blocks. So each (block, layer) comes once in a stream, and a block
        that counts as verified is never written again.
        """
        for index in range(self._num_complete, len(self._layers)):
            self._layers[index] = 0
        return self.num_verified_blocks

    def overlaps(self, run: BlockRun) -> bool:
        """Whether any block of the run, which lies in the grant, has one of its layers already."""
        return any(layers & run.layer_mask for layers in self._layers[self._indices(run)])

    def add(self, run: BlockRun) -> None:
        """Count a run as verified: its KV is in its blocks."""
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
