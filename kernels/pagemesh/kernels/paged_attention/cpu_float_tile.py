"""A tile as floats, for every processor and type."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from pagemesh.kernels.jit.elements import load_element, load_elements
from pagemesh.kernels.jit.emit import LANES, Emitter
from pagemesh.kernels.jit.vector_math import sum_each
from pagemesh.kernels.paged_attention.cpu_tile import ROWS, KernelShape, Slots, Tile, Values

_VECTORS_AT_ONCE = 4  # of a row's sums that are kept in registers


class FloatTile(Tile):
    """Implements `Tile`: everything is made a float when it is read."""

    def __init__(
        self, e: Emitter, shape: KernelShape, arguments: Values, scale: ir.Value, sums: ir.Value
    ) -> None:
        """`sums` is [rows, width], where the weighted values are added up."""
        self._e = e
        self._shape = shape
        self._width = shape.width
        self._arguments = arguments
        self._scale = scale
        self._sums = sums
        self._queries = e.scratch(shape.max_rows * shape.width)
        self._keys = e.scratch(LANES * shape.width)
        self._values = e.scratch(LANES * shape.width)
        self._weights = e.scratch(ROWS * LANES)

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        """See `Tile`; scaled right away."""
        target = self._e.builder.mul(row, self._e.int64(self._width))
        self._copy(self._arguments["query"], source, self._queries, target, self._scale)

    def read(self, slots: Slots) -> None:
        """See `Tile`."""
        e, b = self._e, self._e.builder
        with e.loop(e.int64(0), e.int64(LANES)) as lane:
            slots.fetch_ahead(lane)
            source = slots.begin(lane)
            target = b.mul(lane, e.int64(self._width))
            self._copy(self._arguments["keys"], source, self._keys, target)
            self._copy(self._arguments["values"], source, self._values, target)

    def scores(self, row: ir.Value) -> list[list[ir.Value]]:
        """See `Tile`."""
        e, b = self._e, self._e.builder
        with e.loop(e.int64(0), e.int64(ROWS)) as index:
            begin = b.mul(b.add(row, index), e.int64(self._width))
            products = [e.splat(0.0)] * LANES
            for offset in range(0, self._width, LANES):
                query = e.load(e.at(self._queries, b.add(begin, e.int64(offset))), 64)
                products = [
                    e.fma(
                        query,
                        e.load(e.at(self._keys, e.int64(key * self._width + offset)), 64),
                        product,
                    )
                    for key, product in enumerate(products)
                ]
            place = e.at(self._weights, b.mul(index, e.int64(LANES)))
            e.store(sum_each(e, products), place, 64)
        return [[e.load(e.at(self._weights, e.int64(i * LANES)), 64)] for i in range(ROWS)]

    def add_values(
        self,
        row: ir.Value,
        weights: Sequence[Sequence[ir.Value]],
        corrections: Sequence[ir.Value],
    ) -> None:
        """See `Tile`."""
        e, b = self._e, self._e.builder
        for index, (vector,) in enumerate(weights):
            e.store(vector, e.at(self._weights, e.int64(index * LANES)), 64)
        begin = b.mul(row, e.int64(self._width))
        all_offsets = range(0, self._width, LANES)
        for first in range(0, len(all_offsets), _VECTORS_AT_ONCE):
            offsets = all_offsets[first : first + _VECTORS_AT_ONCE]
            places = [
                e.at(self._sums, b.add(begin, e.int64(index * self._width + offset)))
                for index in range(ROWS)
                for offset in offsets
            ]
            sums = [
                b.fmul(e.load(place, 64), corrections[index // len(offsets)])
                for index, place in enumerate(places)
            ]
            for key in range(LANES):
                values = [
                    e.load(e.at(self._values, e.int64(key * self._width + offset)), 64)
                    for offset in offsets
                ]
                for index in range(ROWS):
                    place = e.at(self._weights, e.int64(index * LANES + key))
                    weight = e.broadcast(b.load(place))
                    for number, value in enumerate(values, index * len(offsets)):
                        sums[number] = e.fma(weight, value, sums[number])
            for total, place in zip(sums, places, strict=True):
                e.store(total, place, 64)

    def _copy(
        self,
        source: ir.Value,
        source_index: ir.Value,
        target: ir.Value,
        target_index: ir.Value,
        factor: ir.Value | None = None,
    ) -> None:
        """One head's elements as floats, perhaps scaled; zeros up to the width."""
        e, b, dtype = self._e, self._e.builder, self._shape.dtype
        num_whole = self._shape.head_dim // LANES * LANES
        if num_whole < self._width:
            place = e.at(target, b.add(target_index, e.int64(num_whole)))
            e.store(e.splat(0.0), place, 64)
        for offset in range(0, num_whole, LANES):
            vector = load_elements(e, e.at(source, b.add(source_index, e.int64(offset))), dtype)
            if factor is not None:
                vector = b.fmul(vector, e.broadcast(factor))
            e.store(vector, e.at(target, b.add(target_index, e.int64(offset))), 64)
        if num_whole < self._shape.head_dim:
            with e.loop(e.int64(num_whole), e.int64(self._shape.head_dim)) as offset:
                value = load_element(e, e.at(source, b.add(source_index, offset)), dtype)
                if factor is not None:
                    value = b.fmul(value, factor)
                b.store(value, e.at(target, b.add(target_index, offset)))
