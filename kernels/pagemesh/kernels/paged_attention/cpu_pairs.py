"""Queries, keys and values of a tile in bfloat16, side by side as instructions for pairs of it want them."""

from __future__ import annotations

from typing import Final

from llvmlite import ir

from pagemesh.kernels.jit.elements import load_raw, store_elements
from pagemesh.kernels.jit.emit import I1, I16, I32, LANES, VEC_I32, Emitter
from pagemesh.kernels.jit.pair_dots import dot_pairs, eight_bit_pairs
from pagemesh.kernels.jit.vector_math import transposed
from pagemesh.kernels.paged_attention.cpu_tile import ROWS, KernelShape, TileSlots, Values

_PAIRS: Final = ir.VectorType(I16, 2 * LANES)  # 16 of them


class TilePairs:
    """Implements `Operands`; heads are filled up with zeros.

    An instruction adds the products of 16 pairs to 16 floats. Weights are rounded to bfloat16, as everywhere in
    fused attention. Keys are turned, so that a vector has the same pair of dimensions of 16 keys; values are interleaved, so
    that a vector has 16 dimensions of a pair of keys.
    """

    numbers_per_unit: int = 2

    def __init__(self, e: Emitter, shape: KernelShape, arguments: Values) -> None:
        self._e = e
        self._width = shape.width
        self._head_dim = shape.head_dim
        self._dtype, self._stored = shape.dtype, shape.stored
        self._num_keys = shape.num_keys
        self._arguments = arguments
        self.queries = e.scratch(shape.max_rows * shape.width, I16)
        self.keys = e.scratch(shape.num_keys * shape.width, I16)
        self.values = e.scratch(shape.num_keys * shape.width, I16)
        self.weights = e.scratch(ROWS * shape.num_keys, I16)
        self._key_rows = e.scratch(shape.num_keys * shape.width, I16)
        self._value_rows = e.scratch(shape.num_keys * shape.width, I16)

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        e, b = self._e, self._e.builder
        target = b.mul(row, e.int64(self._width))
        for offset in range(0, self._width, 2 * LANES):
            pairs = self._read(self._arguments["query"], self._dtype, source, offset)
            e.store(pairs, e.at(self.queries, b.add(target, e.int64(offset))), 64)

    def read(self, slots: TileSlots) -> None:
        e, b = self._e, self._e.builder
        with e.loop(e.int64(0), e.int64(self._num_keys)) as lane:
            slots.fetch_ahead(lane)
            source, target = slots.begin(lane), b.mul(lane, e.int64(self._width))
            for offset in range(0, self._width, 2 * LANES):
                place = b.add(target, e.int64(offset))
                for name, rows in (("keys", self._key_rows), ("values", self._value_rows)):
                    pairs = self._read(self._arguments[name], self._stored, source, offset)
                    e.store(pairs, e.at(rows, place), 64)
        with e.loop(e.int64(0), e.int64(self._num_keys), LANES) as first:
            for offset in range(0, self._width, 2 * LANES):
                self._turn_keys(first, offset)
                self._interleave_values(first, offset)

    def store_weights(self, place: int, weights: ir.Value) -> None:
        address = self._e.at(self.weights, self._e.int64(place))
        store_elements(self._e, weights, address, "bfloat16")

    def load(self, units: ir.Value, index: ir.Value) -> ir.Value:
        e, b = self._e, self._e.builder
        address = e.at(units, b.mul(index, e.int64(2)))
        pairs = b.load(b.bitcast(address, VEC_I32.as_pointer()))
        pairs.align = 64
        return pairs

    def broadcast(self, units: ir.Value, index: ir.Value) -> ir.Value:
        e, b = self._e, self._e.builder
        address = e.at(units, b.mul(index, e.int64(2)))
        return e.broadcast(b.load(b.bitcast(address, I32.as_pointer())), VEC_I32)

    def add_products(self, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        return dot_pairs(self._e, total, x, y)

    def _turn_keys(self, first: ir.Value, offset: int) -> None:
        """16 keys' dimensions from `offset` on, from rows of keys to rows of pairs of dimensions."""
        e, b = self._e, self._e.builder
        rows = [b.bitcast(row, VEC_I32) for row in self._rows(self._key_rows, first, offset)]
        for pair, vector in enumerate(transposed(e, rows)):
            place = b.add(b.mul(first, e.int64(2)), e.int64((offset + 2 * pair) * self._num_keys))
            e.store(vector, e.at(self.keys, place), 64)

    def _interleave_values(self, first: ir.Value, offset: int) -> None:
        e, b = self._e, self._e.builder
        rows = self._rows(self._value_rows, first, offset)
        for pair in range(LANES // 2):
            for half in range(2):
                dims = range(half * LANES, (half + 1) * LANES)
                lanes = [lane for dim in dims for lane in (dim, dim + 2 * LANES)]
                vector = e.shuffle(rows[2 * pair], rows[2 * pair + 1], lanes)
                place = b.add(
                    b.mul(first, e.int64(self._width)),
                    e.int64(2 * (pair * self._width + offset + half * LANES)),
                )
                e.store(vector, e.at(self.values, place), 64)

    def _rows(self, rows: ir.Value, first: ir.Value, offset: int) -> list[ir.Value]:
        """32 elements of 16 rows."""
        e, b = self._e, self._e.builder
        begin = b.mul(first, e.int64(self._width))
        loaded = []
        for index in range(LANES):
            place = e.at(rows, b.add(begin, e.int64(index * self._width + offset)))
            pairs = b.load(b.bitcast(place, _PAIRS.as_pointer()))
            pairs.align = 64
            loaded.append(pairs)
        return loaded

    def _read(self, source: ir.Value, dtype: str, begin: ir.Value, offset: int) -> ir.Value:
        """32 of a head's elements, those that it does not have as zeros."""
        e, b = self._e, self._e.builder
        address = e.at(source, b.add(begin, e.int64(offset)))
        num_left = self._head_dim - offset
        exists = None
        if num_left < 2 * LANES:
            lanes = [int(index < num_left) for index in range(2 * LANES)]
            exists = ir.Constant(ir.VectorType(I1, 2 * LANES), lanes)
        raw = load_raw(e, address, dtype, exists, 2 * LANES)
        if dtype == "bfloat16":
            return raw
        return b.bitcast(eight_bit_pairs(e, raw, dtype), _PAIRS)
