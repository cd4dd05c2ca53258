"""Queries, keys and values of a tile in float32, for every processor and type."""

from __future__ import annotations

from llvmlite import ir

from pagemesh.kernels.jit.elements import load_elements
from pagemesh.kernels.jit.emit import I1, LANES, Emitter
from pagemesh.kernels.jit.vector_math import transposed
from pagemesh.kernels.paged_attention.cpu_tile import ROWS, KernelShape, TileSlots, Values


class TileFloats:
    """Implements `Operands`: everything is made a float when it is read, and heads filled up with zeros.

    Keys are turned, so that a vector has the same dimension of 16 keys.
    """

    numbers_per_unit: int = 1

    def __init__(self, e: Emitter, shape: KernelShape, arguments: Values) -> None:
        self._e = e
        self._shape = shape
        self._arguments = arguments
        self.queries = e.scratch(shape.max_rows * shape.width)
        self.keys = e.scratch(shape.width * shape.num_keys)
        self.values = e.scratch(shape.num_keys * shape.width)
        self.weights = e.scratch(ROWS * shape.num_keys)
        self._key_rows = e.scratch(LANES * shape.width)

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        self._copy("query", self._shape.dtype, source, self.queries, row)

    def read(self, slots: TileSlots) -> None:
        e, b = self._e, self._e.builder
        with e.loop(e.int64(0), e.int64(self._shape.num_keys), LANES) as first:
            with e.loop(e.int64(0), e.int64(LANES)) as lane:
                key = b.add(first, lane)
                slots.fetch_ahead(key)
                source = slots.begin(key)
                self._copy("keys", self._shape.stored, source, self._key_rows, lane)
                self._copy("values", self._shape.stored, source, self.values, key)
            for offset in range(0, self._shape.width, LANES):
                self._turn_keys(first, offset)

    def store_weights(self, place: int, weights: ir.Value) -> None:
        self._e.store(weights, self._e.at(self.weights, self._e.int64(place)), 64)

    def load(self, units: ir.Value, index: ir.Value) -> ir.Value:
        return self._e.load(self._e.at(units, index), 64)

    def broadcast(self, units: ir.Value, index: ir.Value) -> ir.Value:
        return self._e.broadcast(self._e.builder.load(self._e.at(units, index)))

    def add_products(self, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._e.fma(x, y, total)

    def _turn_keys(self, first: ir.Value, offset: int) -> None:
        """16 keys' dimensions from `offset` on, from rows of keys to rows of dimensions."""
        e, b = self._e, self._e.builder
        rows = [
            e.load(e.at(self._key_rows, e.int64(lane * self._shape.width + offset)), 64)
            for lane in range(LANES)
        ]
        for dim, vector in enumerate(transposed(e, rows), start=offset):
            place = b.add(first, e.int64(dim * self._shape.num_keys))
            e.store(vector, e.at(self.keys, place), 64)

    def _copy(
        self, name: str, dtype: str, source: ir.Value, target: ir.Value, row: ir.Value
    ) -> None:
        """One head's elements as a row of floats."""
        e, b, shape = self._e, self._e.builder, self._shape
        begin = b.mul(row, e.int64(shape.width))
        for offset in range(0, shape.width, LANES):
            address = e.at(self._arguments[name], b.add(source, e.int64(offset)))
            num_left = shape.head_dim - offset
            exists = None
            if num_left < LANES:
                lanes = [int(lane < num_left) for lane in range(LANES)]
                exists = ir.Constant(ir.VectorType(I1, LANES), lanes)
            vector = load_elements(e, address, dtype, exists)
            e.store(vector, e.at(target, b.add(begin, e.int64(offset))), 64)
