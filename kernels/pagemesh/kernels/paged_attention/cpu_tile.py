"""What the CPU's kernel is told and what it does with a tile of keys and values at a time.

A tile holds them for one head, and the queries of an item: it reads both, multiplies queries with keys
and adds weighted values up. There are two ways to, see `VectorTile` and `AmxTile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from llvmlite import ir

from pagemesh.kernels.jit.emit import LANES

ARGUMENTS = (
    "counter",  # the next item to be taken, 0 at first
    "num_items",
    "items",  # int64 [items, 7]: see ITEM
    "tables",  # int64: block tables behind each other
    "query",  # [T, heads, head_dim]
    "query_stride",  # elements from token to token
    "keys",  # [blocks, block_size, kv heads, head_dim]
    "values",
    "output",  # [T, heads, head_dim], contiguous
    "sinks",  # float [heads], -inf for none
    "slopes",  # float [heads]
    "scale",  # the bits of a float
    "soft_cap",  # the bits of a float; read by kernels that cap
    "window",  # keys that a query sees on one side, itself included
)
ITEM = (
    "first_row",
    "num_queries",
    "first_position",
    "kv_head",
    "first_table",
    "first_tile",
    "end",  # behind the last key that any of the queries sees
)
ROWS = 4  # query rows that share the loads of keys and values

Values = Mapping[str, ir.Value]


class Multiplies(Enum):
    """What keys and values are multiplied with."""

    FLOATS = auto()
    PAIRS = auto()
    """Of bfloat16, by an instruction."""
    AMX_TILES = auto()


class KernelShape(NamedTuple):
    """What machine code is made for."""

    num_groups: int  # query heads per kv head
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str  # as torch names it
    caps: bool  # whether scores are capped
    multiplies: Multiplies
    causal: bool  # whether a query sees no keys behind its own

    @property
    def width(self) -> int:
        """Head dimensions filled up with zeros to whole vectors."""
        lanes = LANES if self.multiplies == Multiplies.FLOATS else 2 * LANES
        return -(-self.head_dim // lanes) * lanes

    @property
    def num_keys(self) -> int:
        """Of a tile. What is done once for a tile is shared by its keys; they fit the first-level cache."""
        is_narrow = self.width <= (128 if self.multiplies == Multiplies.AMX_TILES else 64)
        num_vectors = 4 if is_narrow else 2
        return LANES * (num_vectors // 2 if self.multiplies == Multiplies.FLOATS else num_vectors)

    @property
    def max_queries(self) -> int:
        """Queries that one item may have; their rows fit the first-level cache."""
        return max(1, (64 if self.width <= 64 else 32) // self.num_groups)

    @property
    def rows_at_once(self) -> int:
        """Rows that are multiplied together, a multiple of ROWS."""
        return 4 * ROWS if self.multiplies == Multiplies.AMX_TILES else ROWS

    @property
    def max_rows(self) -> int:
        """Rows of an item: its queries' heads, filled up to whole groups of rows."""
        return -(-self.max_queries * self.num_groups // self.rows_at_once) * self.rows_at_once


class Slots(Protocol):
    """Where the keys and values of a tile lie."""

    def begin(self, index: ir.Value) -> ir.Value:
        """Index of the first element at the tile's index-th position."""
        ...

    def fetch_ahead(self, index: ir.Value) -> None:
        """Have what will be read some positions after the index-th one fetched."""
        ...


class Tile(Protocol):
    """Keys and values of one head at `num_keys` positions, and the queries of an item."""

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        """Take a row's query, whose elements begin at index `source`."""
        ...

    def read(self, slots: Slots) -> None:
        """Take the keys and values of a tile's positions."""
        ...

    def multiply_keys(self, first_row: ir.Value, num_rows: ir.Value) -> None:
        """Comes before the scores of up to `rows_at_once` rows; for tiles that multiply all of them at once."""
        ...

    def scores(self, row: ir.Value) -> list[list[ir.Value]]:
        """Scaled products of four rows with the keys: for each row, vectors of 16 keys."""
        ...

    def add_values(
        self,
        row: ir.Value,
        weights: Sequence[Sequence[ir.Value]],
        corrections: Sequence[ir.Value],
    ) -> None:
        """sums[row + i] = sums[row + i] · corrections[i] + weights[i] · values, for four rows."""
        ...

    def multiply_values(self, first_row: ir.Value, num_rows: ir.Value) -> None:
        """Comes after `add_values` of up to `rows_at_once` rows; for tiles that add only now."""
        ...

    def close(self) -> None:
        """Comes after all items."""
        ...
