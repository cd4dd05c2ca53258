"""A tile in bfloat16, for processors that multiply pairs of it (AVX512-BF16: Zen 4, Sapphire Rapids)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from llvmlite import ir

from pagemesh.kernels.jit.elements import store_elements
from pagemesh.kernels.jit.emit import I1, I16, I32, LANES, VEC_I32, Emitter
from pagemesh.kernels.jit.loops import fold
from pagemesh.kernels.jit.pair_dots import dot_pairs
from pagemesh.kernels.paged_attention.cpu_tile import ROWS, KernelShape, Slots, Values

_PAIRS = ir.VectorType(I16, 2 * LANES)  # 16 pairs
_SUMS_AT_ONCE = 16  # that grow side by side, because a product takes some cycles
_VECTORS_AT_ONCE = 4  # of a row's sums that are kept in registers


class DotTile:
    """Implements `Tile`: half the instructions of `FloatTile` and half the memory.

    An instruction adds the products of 16 pairs to 16 floats. Keys are turned, so that a vector has the
    same pair of dimensions of 16 keys; values are interleaved, so that a vector has 16 dimensions of a
    pair of keys. Weights are rounded to bfloat16, as everywhere in fused attention.
    """

    def __init__(
        self, e: Emitter, shape: KernelShape, arguments: Values, scale: ir.Value, sums: ir.Value
    ) -> None:
        """`sums` is [rows, width], where the weighted values are added up."""
        self._e = e
        self._width = shape.width
        self._head_dim = shape.head_dim
        self._num_keys = shape.num_keys
        self._arguments = arguments
        self._scale = scale
        self._sums = sums
        self._queries = e.scratch(shape.max_rows * shape.width, I16)
        self._keys = e.scratch(shape.num_keys * shape.width, I16)  # [pairs of dimensions, keys, 2]
        self._values = e.scratch(shape.num_keys * shape.width, I16)  # [pairs of keys, width, 2]
        self._key_rows = e.scratch(shape.num_keys * shape.width, I16)
        self._value_rows = e.scratch(shape.num_keys * shape.width, I16)
        self._weights = e.scratch(ROWS * shape.num_keys, I16)

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        """See `Tile`."""
        e, b = self._e, self._e.builder
        target = b.mul(row, e.int64(self._width))
        for offset in range(0, self._width, 2 * LANES):
            pairs = self._read(self._arguments["query"], source, offset)
            e.store(pairs, e.at(self._queries, b.add(target, e.int64(offset))), 64)

    def read(self, slots: Slots) -> None:
        """See `Tile`."""
        e, b = self._e, self._e.builder
        with e.loop(e.int64(0), e.int64(self._num_keys)) as lane:
            slots.fetch_ahead(lane)
            source, target = slots.begin(lane), b.mul(lane, e.int64(self._width))
            for offset in range(0, self._width, 2 * LANES):
                place = b.add(target, e.int64(offset))
                for name, rows in (("keys", self._key_rows), ("values", self._value_rows)):
                    pairs = self._read(self._arguments[name], source, offset)
                    e.store(pairs, e.at(rows, place), 64)
        with e.loop(e.int64(0), e.int64(self._num_keys), LANES) as first:
            for offset in range(0, self._width, 2 * LANES):
                self._turn_keys(first, offset)
                self._interleave_values(first, offset)

    def scores(self, row: ir.Value) -> list[list[ir.Value]]:
        """See `Tile`."""
        e, b = self._e, self._e.builder
        begin = b.mul(row, e.int64(self._width))
        num_vectors = self._num_keys // LANES
        num_chains = _SUMS_AT_ONCE // (ROWS * num_vectors)
        chain_length = self._width // 2 // num_chains

        def add_pairs(step: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
            grown: list[ir.Value] = []
            for chain in range(num_chains):
                pair = b.add(step, e.int64(chain * chain_length))
                row_of_keys = b.mul(pair, e.int64(2 * self._num_keys))
                keys = [
                    self._load_pairs(self._keys, b.add(row_of_keys, e.int64(2 * LANES * vector)))
                    for vector in range(num_vectors)
                ]
                for index in range(ROWS):
                    place = b.add(begin, e.int64(index * self._width))
                    query = self._broadcast_pair(
                        self._queries, b.add(place, b.mul(pair, e.int64(2)))
                    )
                    for vector in keys:
                        grown.append(self._dot(sums[len(grown)], query, vector))
            return grown

        zeros = [e.splat(0.0)] * _SUMS_AT_ONCE
        sums = fold(e, e.int64(chain_length), zeros, add_pairs)
        while len(sums) > ROWS * num_vectors:
            half = len(sums) // 2
            sums = [b.fadd(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
        scale = e.broadcast(self._scale)
        scores = [b.fmul(total, scale) for total in sums]
        return [scores[first : first + num_vectors] for first in range(0, len(scores), num_vectors)]

    def add_values(
        self,
        row: ir.Value,
        weights: Sequence[Sequence[ir.Value]],
        corrections: Sequence[ir.Value],
    ) -> None:
        """See `Tile`."""
        e, b = self._e, self._e.builder
        for index, of_row in enumerate(weights):
            for number, vector in enumerate(of_row):
                place = e.int64(index * self._num_keys + number * LANES)
                store_elements(e, vector, e.at(self._weights, place), "bfloat16")
        begin = b.mul(row, e.int64(self._width))
        all_offsets = range(0, self._width, LANES)
        for first in range(0, len(all_offsets), _VECTORS_AT_ONCE):
            offsets = all_offsets[first : first + _VECTORS_AT_ONCE]
            places = [
                e.at(self._sums, b.add(begin, e.int64(index * self._width + offset)))
                for index in range(ROWS)
                for offset in offsets
            ]
            corrected = [
                b.fmul(e.load(place, 64), corrections[index // len(offsets)])
                for index, place in enumerate(places)
            ]
            sums = fold(
                e,
                e.int64(self._num_keys // 2),
                corrected,
                functools.partial(self._add_pair, offsets),
            )
            for total, place in zip(sums, places, strict=True):
                e.store(total, place, 64)

    def _add_pair(
        self, offsets: Sequence[int], pair: ir.Value, sums: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """To the sums of four rows at some offsets, the weighted values of a pair of keys."""
        e, b = self._e, self._e.builder
        double = b.mul(pair, e.int64(2))
        row_of_values = b.mul(double, e.int64(self._width))
        values = [
            self._load_pairs(self._values, b.add(row_of_values, e.int64(2 * offset)))
            for offset in offsets
        ]
        grown: list[ir.Value] = []
        for index in range(ROWS):
            place = b.add(double, e.int64(index * self._num_keys))
            weight = self._broadcast_pair(self._weights, place)
            for value in values:
                grown.append(self._dot(sums[len(grown)], weight, value))
        return grown

    def _turn_keys(self, first: ir.Value, offset: int) -> None:
        """16 keys' dimensions from `offset` on, from rows of keys to rows of pairs of dimensions."""
        e, b = self._e, self._e.builder
        rows = [b.bitcast(row, VEC_I32) for row in self._rows(self._key_rows, first, offset)]
        for distance in (8, 4, 2, 1):
            rows = self._swap(rows, distance)
        for pair, vector in enumerate(rows):
            place = b.add(b.mul(first, e.int64(2)), e.int64((offset + 2 * pair) * self._num_keys))
            e.store(vector, e.at(self._keys, place), 64)

    def _swap(self, rows: Sequence[ir.Value], distance: int) -> list[ir.Value]:
        """One step of turning: exchange the off-diagonal quarters of all squares of 2 · distance."""
        turned = list(rows)
        for index in range(LANES):
            if index & distance:
                continue
            upper, lower = rows[index], rows[index + distance]
            first = [
                lane if not lane & distance else lane - distance + LANES for lane in range(LANES)
            ]
            second = [
                lane + distance if not lane & distance else lane + LANES for lane in range(LANES)
            ]
            turned[index] = self._e.shuffle(upper, lower, first)
            turned[index + distance] = self._e.shuffle(upper, lower, second)
        return turned

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
                e.store(vector, e.at(self._values, place), 64)

    def _rows(self, rows: ir.Value, first: ir.Value, offset: int) -> list[ir.Value]:
        """32 elements of 16 rows."""
        e, b = self._e, self._e.builder
        begin = b.mul(first, e.int64(self._width))
        return [
            self._load_pairs(rows, b.add(begin, e.int64(index * self._width + offset)))
            for index in range(LANES)
        ]

    def _read(self, source: ir.Value, begin: ir.Value, offset: int) -> ir.Value:
        """32 of a head's elements, those that it does not have as zeros."""
        e, b = self._e, self._e.builder
        address = e.at(source, b.add(begin, e.int64(offset)))
        address = b.bitcast(address, _PAIRS.as_pointer())
        num_left = self._head_dim - offset
        if num_left >= 2 * LANES:
            pairs = b.load(address)
            pairs.align = 2
            return pairs
        exists = ir.Constant(
            ir.VectorType(I1, 2 * LANES), [int(index < num_left) for index in range(2 * LANES)]
        )
        nothing = ir.Constant(_PAIRS, None)
        return e.intrinsic(
            "llvm.masked.load.v32i16.p0", _PAIRS, address, ir.Constant(I32, 2), exists, nothing
        )

    def _load_pairs(self, rows: ir.Value, index: ir.Value) -> ir.Value:
        b = self._e.builder
        vector = b.load(b.bitcast(self._e.at(rows, index), _PAIRS.as_pointer()))
        vector.align = 64
        return vector

    def _broadcast_pair(self, rows: ir.Value, index: ir.Value) -> ir.Value:
        b = self._e.builder
        pair = b.load(b.bitcast(self._e.at(rows, index), I32.as_pointer()))
        return b.bitcast(self._e.broadcast(pair, VEC_I32), _PAIRS)

    def _dot(self, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        """total + the products of 16 pairs each."""
        b = self._e.builder
        pairs = (b.bitcast(x, VEC_I32), b.bitcast(y, VEC_I32))
        return dot_pairs(self._e, total, *pairs)
