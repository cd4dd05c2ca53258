"""What the CPU's kernel reads: its arguments, and tiles of keys and values as floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from llvmlite import ir

from pagemesh.kernels.jit.elements import load_element, load_elements
from pagemesh.kernels.jit.emit import I32, LANES, VEC, Emitter

ARGUMENTS = (
    "counter",  # int64 [1], 0: the next item to be taken
    "num_items",
    "items",  # int64 [items, 6]: see ITEM
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
    "window",  # keys that a query sees, itself included
)
ITEM = ("first_row", "num_queries", "first_position", "kv_head", "first_table", "first_tile")
_TILES_AHEAD = 1  # that are fetched while one is computed


class KernelShape(NamedTuple):
    """What machine code is made for."""

    num_groups: int  # query heads per kv head
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str  # as torch names it
    caps: bool  # whether scores are capped


class KeyValueTile:
    """16 keys and values of one head, [16, width] each; the width is head_dim, filled up to whole vectors."""

    def __init__(self, e: Emitter, shape: KernelShape, arguments: Mapping[str, ir.Value]) -> None:
        self.e = e
        self.b = e.builder
        self.shape = shape
        self.argument = arguments
        self.width = -(-shape.head_dim // LANES) * LANES
        self.keys = e.scratch(LANES * self.width)
        self.values = e.scratch(LANES * self.width)

    def read(self, item: dict[str, ir.Value], first_key: ir.Value, end: ir.Value) -> None:
        """16 keys and values; zeros outside what the item's queries see: such slots may hold anything."""
        e, b, shape = self.e, self.b, self.shape
        begin = b.sub(b.add(item["first_position"], e.int64(1)), self.argument["window"])
        with e.loop(e.int64(0), e.int64(LANES)) as lane:
            position = b.add(first_key, lane)
            target = b.mul(lane, e.int64(self.width))
            is_there = b.and_(
                b.icmp_signed(">=", position, begin), b.icmp_signed("<", position, end)
            )
            if self.width > shape.head_dim:
                self._clear_row(target)
            with b.if_else(is_there) as (there, behind):
                with behind:
                    self._clear_row(target)
                with there:
                    source = self._slot(item, position)
                    later = b.add(position, e.int64(LANES * _TILES_AHEAD))
                    last = b.sub(end, e.int64(1))
                    later = b.select(b.icmp_signed("<", later, last), later, last)
                    self._prefetch(self._slot(item, later))
                    widen_head(e, shape, self.argument["keys"], source, self.keys, target)
                    widen_head(e, shape, self.argument["values"], source, self.values, target)

    def _slot(self, item: dict[str, ir.Value], position: ir.Value) -> ir.Value:
        """Index of the first element that belongs to a position and the item's head."""
        e, b, shape = self.e, self.b, self.shape
        block_size = e.int64(shape.block_size)
        entry = b.add(item["first_table"], b.udiv(position, block_size))
        block = b.load(e.at(self.argument["tables"], entry))
        slot = b.add(b.mul(block, block_size), b.urem(position, block_size))
        row = b.add(b.mul(slot, e.int64(shape.num_kv_heads)), item["kv_head"])
        return b.mul(row, e.int64(shape.head_dim))

    def _prefetch(self, source: ir.Value) -> None:
        """Have a later position's keys and values fetched: blocks lie anywhere, no processor guesses where."""
        elements_per_line = 64 // (4 if self.shape.dtype == "float32" else 2)
        for base in (self.argument["keys"], self.argument["values"]):
            for offset in range(0, self.shape.head_dim, elements_per_line):
                self.e.prefetch(self.e.at(base, self.b.add(source, self.e.int64(offset))))

    def _clear_row(self, target: ir.Value) -> None:
        zero = ir.Constant(VEC, [0.0] * LANES)
        for offset in range(0, self.width, LANES):
            place = self.b.add(target, self.e.int64(offset))
            self.e.store(zero, self.e.at(self.keys, place), 64)
            self.e.store(zero, self.e.at(self.values, place), 64)


def widen_head(
    e: Emitter,
    shape: KernelShape,
    source: ir.Value,
    source_index: ir.Value,
    target: ir.Value,
    target_index: ir.Value,
    factor: ir.Value | None = None,
) -> None:
    """Copy one head's elements as floats."""
    b, dtype = e.builder, shape.dtype
    num_whole = shape.head_dim // LANES * LANES
    for offset in range(0, num_whole, LANES):
        vector = load_elements(e, e.at(source, b.add(source_index, e.int64(offset))), dtype)
        if factor is not None:
            vector = b.fmul(vector, factor)
        e.store(vector, e.at(target, b.add(target_index, e.int64(offset))), 64)
    if num_whole < shape.head_dim:
        with e.loop(e.int64(num_whole), e.int64(shape.head_dim)) as offset:
            value = load_element(e, e.at(source, b.add(source_index, offset)), dtype)
            if factor is not None:
                value = b.fmul(value, b.extract_element(factor, ir.Constant(I32, 0)))
            b.store(value, e.at(target, b.add(target_index, offset)))
