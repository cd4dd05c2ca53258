"""A tile in bfloat16, for processors that multiply pairs of it (AVX512-BF16: Zen 4, Sapphire Rapids)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from llvmlite import ir

from pagemesh.kernels.jit.elements import store_elements
from pagemesh.kernels.jit.emit import I16, I32, LANES, VEC_I32, Emitter
from pagemesh.kernels.jit.loops import fold
from pagemesh.kernels.jit.pair_dots import dot_pairs
from pagemesh.kernels.paged_attention.cpu_pairs import PAIRS, TilePairs
from pagemesh.kernels.paged_attention.cpu_tile import ROWS, KernelShape, Slots, Tile, Values

_SUMS_AT_ONCE = 16  # that grow side by side, because a product takes some cycles
_VECTORS_AT_ONCE = 4  # of a row's sums that are kept in registers


class DotTile(Tile):
    """Implements `Tile`: half the instructions of `FloatTile` and half the memory.

    An instruction adds the products of 16 pairs to 16 floats. Weights are rounded to bfloat16, as
    everywhere in fused attention.
    """

    def __init__(
        self, e: Emitter, shape: KernelShape, arguments: Values, scale: ir.Value, sums: ir.Value
    ) -> None:
        """`sums` is [rows, width], where the weighted values are added up."""
        self._e = e
        self._width = shape.width
        self._num_keys = shape.num_keys
        self._scale = scale
        self._sums = sums
        self._pairs = TilePairs(e, shape, arguments)
        self._weights = e.scratch(ROWS * shape.num_keys, I16)

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        """See `Tile`."""
        self._pairs.read_query(row, source)

    def read(self, slots: Slots) -> None:
        """See `Tile`."""
        self._pairs.read(slots)

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
                    self._pairs.load(
                        self._pairs.keys, b.add(row_of_keys, e.int64(2 * LANES * vector))
                    )
                    for vector in range(num_vectors)
                ]
                for index in range(ROWS):
                    place = b.add(begin, e.int64(index * self._width))
                    query = self._broadcast_pair(
                        self._pairs.queries, b.add(place, b.mul(pair, e.int64(2)))
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
            self._pairs.load(self._pairs.values, b.add(row_of_values, e.int64(2 * offset)))
            for offset in offsets
        ]
        grown: list[ir.Value] = []
        for index in range(ROWS):
            place = b.add(double, e.int64(index * self._num_keys))
            weight = self._broadcast_pair(self._weights, place)
            for value in values:
                grown.append(self._dot(sums[len(grown)], weight, value))
        return grown

    def _broadcast_pair(self, rows: ir.Value, index: ir.Value) -> ir.Value:
        b = self._e.builder
        pair = b.load(b.bitcast(self._e.at(rows, index), I32.as_pointer()))
        return b.bitcast(self._e.broadcast(pair, VEC_I32), PAIRS)

    def _dot(self, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        """total + the products of 16 pairs each."""
        b = self._e.builder
        pairs = (b.bitcast(x, VEC_I32), b.bitcast(y, VEC_I32))
        return dot_pairs(self._e, total, *pairs)
