"""KV blocks: their shape, who may read and write them, and what is said of those that travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Protocol

NUM_BYTES_OF: Final[Mapping[str, int]] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "int8": 1,
}
"""Of a number in a KV block, by the names of its type in torch."""

_INT8_SCALE_BYTES: Final = 4
"""In int8 the numbers of a head of a token have a scale behind them, a float32."""


class KvGroup(NamedTuple):
    """Layers whose KV of a token lies in the same blocks and is kept equally long: they share a block table."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class KvLayout:
    """Shape of one KV block; equal layouts can exchange blocks.

    What follows from it is computed once: each message of a stream asks.
    """

    block_size: int
    dtype: str
    """As torch names it, for example "float32"."""
    groups: tuple[KvGroup, ...]
    """Of all layers. Whatever needs to know that there is only one takes it from `group`."""

    @classmethod
    def uniform(
        cls, block_size: int, num_layers: int, num_kv_heads: int, head_dim: int, dtype: str
    ) -> KvLayout:
        """Of a model all of whose layers are alike."""
        return cls(block_size, dtype, (KvGroup(num_layers, num_kv_heads, head_dim),))

    @cached_property
    def group(self) -> KvGroup:
        """The only group; ValueError if there are more."""
        (group,) = self.groups
        return group

    @cached_property
    def num_layers(self) -> int:
        """Layers that keep KV in the blocks."""
        return self.group.num_layers

    @cached_property
    def row_size(self) -> int:
        """Elements of a head's keys, or values, of one token; the bytes of a scale are elements too."""
        return self.group.head_dim + (_INT8_SCALE_BYTES if self.dtype == "int8" else 0)

    @cached_property
    def num_bytes_per_layer(self) -> int:
        """Bytes of one block in one layer, K and V together."""
        num_rows = 2 * self.block_size * self.group.num_kv_heads
        return num_rows * self.row_size * NUM_BYTES_OF[self.dtype]

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.num_layers * self.num_bytes_per_layer

    def num_bytes_of(self, num_blocks: int, num_layers: int) -> int:
        """Bytes of so many blocks in so many layers."""
        return num_blocks * num_layers * self.num_bytes_per_layer


class KvAccess(Protocol):
    """Reads and writes blocks that the caller holds by an export, an import or a pin; any thread."""

    @property
    def layout(self) -> KvLayout:
        """Shape of the blocks."""
        ...

    def read(
        self, block_ids: Sequence[int], first_layer: int, num_layers: int, target: memoryview
    ) -> None:
        """Copy elements of the blocks, in C order [layer, 2, block, slot, kv head, row size].

        `target` is writable bytes; KvIntegrityError unless it has the size of the elements.
        """
        ...

    def write(
        self,
        block_ids: Sequence[int],
        first_layer: int,
        num_layers: int,
        payload: bytes | memoryview,
    ) -> None:
        """Fill the blocks with what `read` gave elsewhere, as one piece; KvIntegrityError on a wrong size."""
        ...


@dataclass(frozen=True, slots=True)
class KvExport:
    """Export: these blocks will hold the request's KV; how much of it they hold is told by `KvProgress`."""

    request_id: str
    block_ids: tuple[int, ...]
    """Block table of all tokens that the request came with."""
    block_hashes: tuple[bytes, ...]
    """Hashes of the full blocks among them."""
    num_held_tokens: int
    """Leading tokens found in the prefix cache."""


class KvProgress(NamedTuple):
    """Export: the KV of the request's tokens [0, num_tokens) is in layers [0, num_layers) and may be read.

    That is added to what was told before: KV that can be read stays so until the export is released.
    Parts of a step are told while it computes, but its last layer only when the step has succeeded. So
    no token of a step that failed is ever told in all layers.
    """

    request_id: str
    num_tokens: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class KvGrant:
    """Import: blocks are reserved; the importer may write those behind the held ones."""

    request_id: str
    num_held_tokens: int
    """Leading tokens found in the prefix cache; a multiple of the block size, less than the request came with."""
    block_ids: tuple[int, ...]
    """Block table of all tokens that the request came with."""
    block_hashes: tuple[bytes, ...]
    """Hashes of the full blocks among them."""
