"""What scales of keys and values do on the CPU: scores and weights are multiplied, never what is stored.

So what is multiplied with queries is exactly what is stored, in bfloat16 too, and is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from pagemesh.kernels.jit.emit import F32, LANES, Emitter
from pagemesh.kernels.paged_attention.cpu_tile import KernelShape, TileSlots, Values

Rows = Sequence[Sequence[ir.Value]]
"""Of each row vectors of 16 keys."""


class TileScales:
    """Those of an item's head in FP8, of each position of a tile in int8; otherwise there are none."""

    def __init__(self, e: Emitter, shape: KernelShape, arguments: Values) -> None:
        self._e = e
        self._shape = shape
        self._arguments = arguments
        self._per_position = shape.stored == "int8"
        self._per_head = shape.stored == "float8_e4m3fn"
        num_kept = shape.num_keys if self._per_position else LANES
        self._keys, self._values = (e.scratch(num_kept) for _ in range(2))

    def begin(self, item: Values) -> None:
        """Take those of the item's head."""
        if not self._per_head:
            return
        e, b = self._e, self._e.builder
        for name, kept in (("key_scales", self._keys), ("value_scales", self._values)):
            scale = b.load(e.at(self._arguments[name], item["kv_head"]))
            e.store(e.broadcast(scale), kept, 64)

    def read(self, slots: TileSlots) -> None:
        """Take those of a tile's positions, which lie behind their numbers."""
        if not self._per_position:
            return
        e, b = self._e, self._e.builder
        with e.loop(e.int64(0), e.int64(self._shape.num_keys)) as index:
            place = b.add(slots.begin(index), e.int64(self._shape.head_dim))
            for name, kept in (("keys", self._keys), ("values", self._values)):
                address = b.bitcast(e.at(self._arguments[name], place), F32.as_pointer())
                scale = b.load(address)
                scale.align = 1
                b.store(scale, e.at(kept, index))

    def scored(self, products: Rows) -> Rows:
        """Products with keys, from products with what is stored."""
        return self._multiplied(products, self._keys)

    def weighted(self, weights: Rows) -> Rows:
        """What is multiplied with stored values, from the weights of values."""
        return self._multiplied(weights, self._values) if self._per_position else weights

    def summed(self, factor: ir.Value) -> ir.Value:
        """What sums of stored values are multiplied with."""
        if not self._per_head:
            return factor
        return self._e.builder.fmul(factor, self._e.load(self._values, 64))

    def _multiplied(self, rows: Rows, scales: ir.Value) -> Rows:
        if not (self._per_position or self._per_head):
            return rows
        e, b = self._e, self._e.builder
        step = LANES if self._per_position else 0
        of_keys = [
            e.load(e.at(scales, e.int64(step * number)), 64) for number in range(len(rows[0]))
        ]
        return [[b.fmul(*pair) for pair in zip(row, of_keys, strict=True)] for row in rows]
