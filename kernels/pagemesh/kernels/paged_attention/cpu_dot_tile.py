"""A tile in bfloat16, for processors that multiply pairs of it (AVX512-BF16: Zen 4, Sapphire Rapids)."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from pagemesh.kernels.jit.elements import store_elements
from pagemesh.kernels.jit.emit import I16, I32, LANES, VEC, VEC_I32, Emitter
from pagemesh.kernels.paged_attention.cpu_tile import ROWS, KernelShape, SlotReader, Values

_PAIRS = ir.VectorType(I16, 2 * LANES)  # 16 pairs
_CHAINS = 4  # sums of a row's products that grow side by side, because a product takes some cycles
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
        self._shape = shape
        self._width = shape.width
        self._arguments = arguments
        self._scale = scale
        self._sums = sums
        self._slots = SlotReader(e, shape, arguments)
        self._queries = e.scratch(shape.max_rows * shape.width, I16)
        self._rows = e.scratch(LANES * shape.width, I16)
        self._value_rows = e.scratch(LANES * shape.width, I16)
        self._keys = e.scratch(LANES * shape.width, I16)  # [pairs of dimensions, 16 keys, 2]
        self._values = e.scratch(LANES * shape.width, I16)  # [pairs of keys, width, 2]
        self._weights = e.scratch(ROWS * LANES, I16)

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        """See `Tile`."""
        target = self._e.builder.mul(row, self._e.int64(self._width))
        self._copy(self._arguments["query"], source, self._queries, target)

    def read(self, item: Values, first_key: ir.Value, end: ir.Value) -> None:
        """See `Tile`."""
        e, b = self._e, self._e.builder

        def copy(lane: ir.Value, source: ir.Value) -> None:
            target = b.mul(lane, e.int64(self._width))
            self._copy(self._arguments["keys"], source, self._rows, target)
            self._copy(self._arguments["values"], source, self._value_rows, target)

        def clear(lane: ir.Value) -> None:
            target = b.mul(lane, e.int64(self._width))
            for rows in (self._rows, self._value_rows):
                self._clear(rows, target)

        self._slots.read(item, first_key, end, copy, clear)
        self._turn_keys()
        self._interleave_values()

    def scores(self, row: ir.Value) -> list[ir.Value]:
        """See `Tile`."""
        e, b = self._e, self._e.builder
        begin = b.mul(row, e.int64(self._width))
        chains = [[e.splat(0.0)] * _CHAINS for _ in range(ROWS)]
        for pair in range(self._width // 2):
            keys = self._load_pairs(self._keys, e.int64(pair * 2 * LANES))
            for index in range(ROWS):
                place = b.add(begin, e.int64(index * self._width + 2 * pair))
                query = self._broadcast_pair(self._queries, place)
                chain = pair % _CHAINS
                chains[index][chain] = self._dot(chains[index][chain], query, keys)
        scale = e.broadcast(self._scale)
        return [
            b.fmul(b.fadd(b.fadd(first, second), b.fadd(third, fourth)), scale)
            for first, second, third, fourth in chains
        ]

    def add_values(
        self, row: ir.Value, weights: Sequence[ir.Value], corrections: Sequence[ir.Value]
    ) -> None:
        """See `Tile`."""
        e, b = self._e, self._e.builder
        for index, vector in enumerate(weights):
            store_elements(e, vector, e.at(self._weights, e.int64(index * LANES)), "bfloat16")
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
            for pair in range(LANES // 2):
                values = [
                    self._load_pairs(self._values, e.int64(2 * (pair * self._width + offset)))
                    for offset in offsets
                ]
                for index in range(ROWS):
                    place = e.int64(index * LANES + 2 * pair)
                    weight = self._broadcast_pair(self._weights, place)
                    for number, value in enumerate(values, index * len(offsets)):
                        sums[number] = self._dot(sums[number], weight, value)
            for total, place in zip(sums, places, strict=True):
                e.store(total, place, 64)

    def _turn_keys(self) -> None:
        """From rows of keys to rows of pairs of dimensions: 16 x 16 pairs at a time."""
        e, b = self._e, self._e.builder
        with e.loop(e.int64(0), e.int64(self._width), 2 * LANES) as offset:
            rows = [
                b.bitcast(
                    self._load_pairs(self._rows, b.add(offset, e.int64(key * self._width))), VEC_I32
                )
                for key in range(LANES)
            ]
            for distance in (8, 4, 2, 1):
                rows = self._swap(rows, distance)
            for pair, vector in enumerate(rows):
                place = b.add(b.mul(offset, e.int64(LANES)), e.int64(pair * 2 * LANES))
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

    def _interleave_values(self) -> None:
        e, b = self._e, self._e.builder
        with e.loop(e.int64(0), e.int64(self._width), 2 * LANES) as offset:
            for pair in range(LANES // 2):
                first, second = (
                    self._load_pairs(self._value_rows, b.add(offset, e.int64(key * self._width)))
                    for key in (2 * pair, 2 * pair + 1)
                )
                for half in range(2):
                    dims = range(half * LANES, (half + 1) * LANES)
                    lanes = [lane for dim in dims for lane in (dim, dim + 2 * LANES)]
                    place = b.mul(
                        b.add(offset, e.int64(pair * self._width + half * LANES)), e.int64(2)
                    )
                    e.store(e.shuffle(first, second, lanes), e.at(self._values, place), 64)

    def _copy(
        self, source: ir.Value, source_index: ir.Value, target: ir.Value, target_index: ir.Value
    ) -> None:
        """One head's elements; zeros up to the width."""
        e, b = self._e, self._e.builder
        num_whole = self._shape.head_dim // (2 * LANES) * 2 * LANES
        if num_whole < self._width:
            self._clear(target, target_index)
        for offset in range(0, num_whole, 2 * LANES):
            place = e.at(source, b.add(source_index, e.int64(offset)))
            vector = b.load(b.bitcast(place, _PAIRS.as_pointer()))
            vector.align = 2
            e.store(vector, e.at(target, b.add(target_index, e.int64(offset))), 64)
        if num_whole < self._shape.head_dim:
            with e.loop(e.int64(num_whole), e.int64(self._shape.head_dim)) as offset:
                value = b.load(e.at(source, b.add(source_index, offset)))
                b.store(value, e.at(target, b.add(target_index, offset)))

    def _clear(self, rows: ir.Value, begin: ir.Value) -> None:
        e = self._e
        zero = ir.Constant(_PAIRS, [0] * 2 * LANES)
        for offset in range(0, self._width, 2 * LANES):
            e.store(zero, e.at(rows, e.builder.add(begin, e.int64(offset))), 64)

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
        return self._e.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", VEC, total, *pairs)
