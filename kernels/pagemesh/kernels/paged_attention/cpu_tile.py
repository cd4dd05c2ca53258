"""What the CPU's kernel is told and what it does with 16 keys and values at a time.

A tile holds them for one head, and the queries of an item: it reads both, multiplies queries with keys
and adds weighted values up. There are two ways to, see `FloatTile` and `DotTile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from llvmlite import ir

from pagemesh.kernels.jit.emit import I8, I32, LANES, Emitter

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
_TILES_AHEAD = 1  # that are fetched while one is computed

Values = Mapping[str, ir.Value]


class KernelShape(NamedTuple):
    """What machine code is made for."""

    num_groups: int  # query heads per kv head
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str  # as torch names it
    caps: bool  # whether scores are capped
    dots: bool  # whether bfloat16 is multiplied as it is
    causal: bool  # whether a query sees no keys behind its own

    @property
    def width(self) -> int:
        """Head dimensions filled up with zeros to whole vectors."""
        lanes = 2 * LANES if self.dots else LANES
        return -(-self.head_dim // lanes) * lanes

    @property
    def max_queries(self) -> int:
        """Queries that one item may have; their rows fit the first-level cache."""
        return max(1, (64 if self.width <= 64 else 32) // self.num_groups)

    @property
    def max_rows(self) -> int:
        """Rows of an item: its queries' heads, filled up to whole groups of rows."""
        return -(-self.max_queries * self.num_groups // ROWS) * ROWS


class Tile(Protocol):
    """16 keys and values of one head, and the queries of an item."""

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        """Take a row's query, whose elements begin at index `source`."""
        ...

    def read(self, item: Values, first_key: ir.Value, end: ir.Value) -> None:
        """Take the keys and values of 16 positions; zeros for those that the item's queries do not see."""
        ...

    def scores(self, row: ir.Value) -> list[ir.Value]:
        """Scaled products of four rows with the keys, a vector for each row."""
        ...

    def add_values(
        self, row: ir.Value, weights: Sequence[ir.Value], corrections: Sequence[ir.Value]
    ) -> None:
        """sums[row + i] = sums[row + i] · corrections[i] + weights[i] · values, for four rows."""
        ...


class SlotReader:
    """Finds the slots of a tile's positions and has later ones fetched in the meantime."""

    def __init__(self, e: Emitter, shape: KernelShape, arguments: Values) -> None:
        self._e = e
        self._shape = shape
        self._arguments = arguments

    def read(
        self,
        item: Values,
        first_key: ir.Value,
        end: ir.Value,
        copy: Callable[[ir.Value, ir.Value], None],
        clear: Callable[[ir.Value], None],
    ) -> None:
        """For each lane: copy(lane, index of its elements), or clear(lane) when no query sees it."""
        e = self._e
        b = e.builder
        begin = b.sub(b.add(item["first_position"], e.int64(1)), self._arguments["window"])
        last = b.sub(end, e.int64(1))
        with e.loop(e.int64(0), e.int64(LANES)) as lane:
            position = b.add(first_key, lane)
            is_seen = b.and_(
                b.icmp_signed(">=", position, begin), b.icmp_signed("<", position, end)
            )
            with b.if_else(is_seen) as (seen, unseen):
                with unseen:
                    clear(lane)
                with seen:
                    later = b.add(position, e.int64(LANES * _TILES_AHEAD))
                    later = b.select(b.icmp_signed("<", later, last), later, last)
                    self._prefetch(self._slot(item, later))
                    copy(lane, self._slot(item, position))

    def _slot(self, item: Values, position: ir.Value) -> ir.Value:
        """Index of the first element that belongs to a position and the item's head."""
        e, shape = self._e, self._shape
        b = e.builder
        block_size = e.int64(shape.block_size)
        entry = b.add(item["first_table"], b.udiv(position, block_size))
        block = b.load(e.at(self._arguments["tables"], entry))
        slot = b.add(b.mul(block, block_size), b.urem(position, block_size))
        row = b.add(b.mul(slot, e.int64(shape.num_kv_heads)), item["kv_head"])
        return b.mul(row, e.int64(shape.head_dim))

    def _prefetch(self, source: ir.Value) -> None:
        """Have a later position's keys and values fetched: blocks lie anywhere, no processor guesses where."""
        e, b = self._e, self._e.builder
        is_read, keep, is_data = (ir.Constant(I32, value) for value in (0, 3, 1))
        elements_per_line = 64 // (4 if self._shape.dtype == "float32" else 2)
        for base in (self._arguments["keys"], self._arguments["values"]):
            for offset in range(0, self._shape.head_dim, elements_per_line):
                line = b.bitcast(e.at(base, b.add(source, e.int64(offset))), I8.as_pointer())
                e.intrinsic("llvm.prefetch.p0", ir.VoidType(), line, is_read, keep, is_data)
