"""What the CPU's kernel is told and what it does with a tile of keys and values at a time.

A tile holds them for one head, and the queries of an item: it reads both, multiplies queries with keys
and adds weighted values up. There are two ways to, see `VectorTile` and `AmxTile`.
Blocks lie anywhere, so each run of slots is looked up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from llvmlite import ir

from pagemesh.kernels.jit.elements import ELEMENT_TYPES
from pagemesh.kernels.jit.emit import F32, I8, I32, I64, LANES, Emitter
from pagemesh.kernels.kv_scales import INT8_SCALE_BYTES

ARGUMENTS = (
    "counter",  # the next item to be taken, 0 at first
    "num_items",
    "items",  # int64 [items, 7]: see ITEM
    "tables",  # int64: block tables behind each other
    "query",  # [T, heads, head_dim]
    "query_stride",  # elements from token to token
    "keys",  # [blocks, block_size, kv heads, row_size]
    "values",
    "output",  # [T, heads, head_dim], contiguous
    "sinks",  # float [heads], -inf for none
    "slopes",  # float [heads]
    "scale",  # the bits of a float
    "soft_cap",  # the bits of a float; read by kernels that cap
    "key_scales",  # float [kv heads]; read by kernels for FP8, as `value_scales`
    "value_scales",
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
    dtype: str  # of queries and the output, as torch names it
    stored: str  # of keys and values
    caps: bool  # whether scores are capped
    multiplies: Multiplies
    causal: bool  # whether a query sees no keys behind its own

    @property
    def row_size(self) -> int:
        """Elements from a head's keys of a token to those of the next head."""
        return self.head_dim + (INT8_SCALE_BYTES if self.stored == "int8" else 0)

    @property
    def element_bytes(self) -> int:
        """Of keys and values."""
        return {"float32": 4, "int8": 1, "float8_e4m3fn": 1}.get(self.stored, 2)

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


def read_arguments(e: Emitter, shape: KernelShape) -> Values:
    """What the kernel was told, by the names of ARGUMENTS."""
    element, stored = ELEMENT_TYPES[shape.dtype], ELEMENT_TYPES[shape.stored]
    pointers = {"items": I64, "tables": I64, "query": element, "output": element}
    pointers |= {"keys": stored, "values": stored}
    pointers |= dict.fromkeys(("sinks", "slopes", "key_scales", "value_scales"), F32)
    return {name: e.argument(index, pointers.get(name)) for index, name in enumerate(ARGUMENTS)}


class Tile(Protocol):
    """Keys and values of one head at `num_keys` positions, and the queries of an item."""

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        """Take a row's query, whose elements begin at index `source`."""
        ...

    def read(self, slots: TileSlots) -> None:
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


class TileSlots:
    """Of the tile that is computed, and of the one after it."""

    def __init__(self, e: Emitter, shape: KernelShape, arguments: Values) -> None:
        self._e = e
        self._shape = shape
        self._arguments = arguments
        self._begins = e.scratch(2 * shape.num_keys, I64)
        self._taken = e.scratch(1, I64)  # which half of them is that of the tile that is computed
        with e.builder.goto_entry_block():
            e.builder.store(e.int64(0), self._taken)

    def find(self, item: Values, first_key: ir.Value) -> None:
        """Look up the positions of the tile to be taken next.

        Positions that the item's queries do not see stand for the nearest one that they see, so that
        nothing else is ever read.
        """
        e = self._e
        b = e.builder
        begin = b.sub(b.add(item["first_position"], e.int64(1)), self._arguments["window"])
        begin = self._greater(begin, e.int64(0))
        last = b.sub(item["end"], e.int64(1))
        length = math.gcd(LANES, self._shape.block_size)
        aligned = e.int64(-length)
        found = self._half(b.xor(b.load(self._taken), e.int64(1)))
        with e.loop(e.int64(0), e.int64(self._shape.num_keys), length) as offset:
            first = self._greater(b.add(first_key, offset), b.and_(begin, aligned))
            first = self._lesser(first, b.and_(last, aligned))
            row = self._row(item, first)
            # From a run's first slot on, those of its other positions follow one another.
            for index in range(length):
                position = self._greater(b.add(first, e.int64(index)), begin)
                distance = b.sub(self._lesser(position, last), first)
                own_row = b.add(row, b.mul(distance, e.int64(self._shape.num_kv_heads)))
                element = b.mul(own_row, e.int64(self._shape.row_size))
                b.store(element, e.at(found, b.add(offset, e.int64(index))))

    def take(self) -> None:
        """Turn to the tile that was found last."""
        b = self._e.builder
        b.store(b.xor(b.load(self._taken), self._e.int64(1)), self._taken)

    def begin(self, index: ir.Value) -> ir.Value:
        """Index of the first element at the tile's index-th position."""
        b = self._e.builder
        return b.load(self._e.at(self._half(b.load(self._taken)), index))

    def fetch_ahead(self, index: ir.Value) -> None:
        """Have what will be read some positions behind the index-th one fetched.

        No processor guesses where the next block lies. Not from further away than 16 positions: a core has only so many lines on their way at once.
        """
        e = self._e
        b = e.builder
        num_keys = e.int64(self._shape.num_keys)
        ahead = b.add(index, e.int64(LANES))
        is_beyond = b.icmp_signed(">=", ahead, num_keys)
        taken = b.load(self._taken)
        half = self._half(b.select(is_beyond, b.xor(taken, e.int64(1)), taken))
        element = b.load(e.at(half, b.select(is_beyond, b.sub(ahead, num_keys), ahead)))
        is_read, keep, is_data = (ir.Constant(I32, value) for value in (0, 3, 1))
        shape = self._shape
        for base in (self._arguments["keys"], self._arguments["values"]):
            for offset in range(0, shape.row_size, 64 // shape.element_bytes):
                line = b.bitcast(e.at(base, b.add(element, e.int64(offset))), I8.as_pointer())
                e.intrinsic("llvm.prefetch.p0", ir.VoidType(), line, is_read, keep, is_data)

    def _row(self, item: Values, position: ir.Value) -> ir.Value:
        """Which of all heads in all slots a position's is."""
        e, shape = self._e, self._shape
        b = e.builder
        block_size = e.int64(shape.block_size)
        entry = b.add(item["first_table"], b.udiv(position, block_size))
        block = b.load(e.at(self._arguments["tables"], entry))
        slot = b.add(b.mul(block, block_size), b.urem(position, block_size))
        return b.add(b.mul(slot, e.int64(shape.num_kv_heads)), item["kv_head"])

    def _half(self, number: ir.Value) -> ir.Value:
        begin = self._e.builder.mul(number, self._e.int64(self._shape.num_keys))
        return self._e.at(self._begins, begin)

    def _greater(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._e.builder.select(self._e.builder.icmp_signed(">", x, y), x, y)

    def _lesser(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._e.builder.select(self._e.builder.icmp_signed("<", x, y), x, y)
