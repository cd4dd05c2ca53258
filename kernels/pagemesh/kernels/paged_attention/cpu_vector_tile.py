"""A tile whose rows are multiplied with vectors of keys and values: floats, or pairs of bfloat16."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa
from pagemesh.kernels.jit.emit import LANES, Emitter, fold
from pagemesh.kernels.paged_attention.cpu_tile import ROWS, KernelShape, TileSlots

_NUM_SUMS: Final = 16
"""For the scores of four rows: where these are fewer, dimensions are shared among several sums."""


class Operands(Protocol):
    """What was read of a tile, in units of 32 bits: floats or pairs.

    `queries` are [rows, units of the width], `keys` [units of the width, keys], `values` [units of the keys,
    width], `weights` [4 rows, units of the keys].
    """

    queries: ir.Value
    keys: ir.Value
    values: ir.Value
    weights: ir.Value
    numbers_per_unit: int

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        """See `Tile`."""

    def read(self, slots: TileSlots) -> None:
        """See `Tile`."""

    def store_weights(self, place: int, weights: ir.Value) -> None:
        """Those of 16 keys, as the place-th number and those behind it."""

    def load(self, units: ir.Value, index: ir.Value) -> ir.Value:
        """16 units from the index-th on."""
        ...

    def broadcast(self, units: ir.Value, index: ir.Value) -> ir.Value:
        """The index-th unit in all lanes."""
        ...

    def add_products(self, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        """total + x · y, where those of a pair are two products."""
        ...


class VectorTile:
    """Implements `Tile`. Each sum grows in the same order, however many grow side by side."""

    def __init__(
        self, e: Emitter, shape: KernelShape, operands: Operands, scale: ir.Value, sums: ir.Value
    ) -> None:
        """`sums` is [rows, width], where the weighted values are added up."""
        self._e = e
        self._width = shape.width
        self._num_keys = shape.num_keys
        self._operands = operands
        self._scale = scale
        self._sums = sums
        # By how many registers there are, because a product takes some cycles.
        self._vectors_at_once = 4 if _has_many_registers() else 1

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        self._operands.read_query(row, source)

    def read(self, slots: TileSlots) -> None:
        self._operands.read(slots)

    def multiply_keys(self, first_row: ir.Value, num_rows: ir.Value) -> None:
        """See `Tile`: `scores` does."""

    def multiply_values(self, first_row: ir.Value, num_rows: ir.Value) -> None:
        """See `Tile`: `add_values` has."""

    def close(self) -> None:
        """See `Tile`: there is nothing to."""

    def scores(self, row: ir.Value) -> list[list[ir.Value]]:
        b = self._e.builder
        num_vectors = self._num_keys // LANES
        num_chains = _NUM_SUMS // (ROWS * num_vectors)
        chain_length = self._width // self._operands.numbers_per_unit // num_chains
        # By chain, and in it by vector of keys: one for each row.
        all_sums: list[list[ir.Value]] = []
        columns = [(chain, vector) for chain in range(num_chains) for vector in range(num_vectors)]
        for first in range(0, len(columns), self._vectors_at_once):
            together = columns[first : first + self._vectors_at_once]
            all_sums += self._grow_scores(row, together, chain_length)
        while len(all_sums) > num_vectors:
            half = len(all_sums) // 2
            all_sums = [
                [b.fadd(*each) for each in zip(*pair, strict=True)]
                for pair in zip(all_sums[:half], all_sums[half:], strict=True)
            ]
        scale = self._e.broadcast(self._scale)
        return [
            [b.fmul(of_vector[index], scale) for of_vector in all_sums] for index in range(ROWS)
        ]

    def _grow_scores(
        self, row: ir.Value, columns: Sequence[tuple[int, int]], chain_length: int
    ) -> list[list[ir.Value]]:
        """For each (chain, vector of keys) the sums of four rows."""
        e, b, operands = self._e, self._e.builder, self._operands
        num_units = self._width // operands.numbers_per_unit
        begin = b.mul(row, e.int64(num_units))

        def add_units(step: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
            remaining = iter(sums)
            grown: list[ir.Value] = []
            for chain, vector in columns:
                unit = b.add(step, e.int64(chain * chain_length))
                row_of_keys = b.mul(unit, e.int64(self._num_keys))
                place_of_keys = b.add(row_of_keys, e.int64(LANES * vector))
                keys = operands.load(operands.keys, place_of_keys)
                for index in range(ROWS):
                    place = b.add(b.add(begin, e.int64(index * num_units)), unit)
                    query = operands.broadcast(operands.queries, place)
                    grown.append(operands.add_products(next(remaining), query, keys))
            return grown

        zeros = [e.splat(0.0)] * (ROWS * len(columns))
        sums = fold(e, e.int64(chain_length), zeros, add_units)
        return [sums[first : first + ROWS] for first in range(0, len(sums), ROWS)]

    def add_values(
        self,
        row: ir.Value,
        weights: Sequence[Sequence[ir.Value]],
        corrections: Sequence[ir.Value],
    ) -> None:
        e, b, operands = self._e, self._e.builder, self._operands
        for index, of_row in enumerate(weights):
            for number, vector in enumerate(of_row):
                operands.store_weights(index * self._num_keys + number * LANES, vector)
        num_units = self._num_keys // operands.numbers_per_unit
        for offsets in self._offsets():
            places = [
                e.at(self._sums, b.add(b.mul(row, e.int64(self._width)), e.int64(offset)))
                for offset in (
                    index * self._width + own for index in range(ROWS) for own in offsets
                )
            ]
            corrected = [
                b.fmul(e.load(place, 64), corrections[index // len(offsets)])
                for index, place in enumerate(places)
            ]

            def add_keys(
                unit: ir.Value, sums: Sequence[ir.Value], offsets: Sequence[int] = offsets
            ) -> list[ir.Value]:
                row_of_values = b.mul(unit, e.int64(self._width))
                values = [
                    operands.load(operands.values, b.add(row_of_values, e.int64(offset)))
                    for offset in offsets
                ]
                remaining = iter(sums)
                grown: list[ir.Value] = []
                for index in range(ROWS):
                    place = b.add(unit, e.int64(index * num_units))
                    weight = operands.broadcast(operands.weights, place)
                    grown += [operands.add_products(next(remaining), weight, v) for v in values]
                return grown

            sums = fold(e, e.int64(num_units), corrected, add_keys)
            for total, place in zip(sums, places, strict=True):
                e.store(total, place, 64)

    def _offsets(self) -> Iterator[Sequence[int]]:
        """Of the vectors of a row's sums, those that are kept in registers together."""
        size = self._vectors_at_once * LANES
        for first in range(0, self._width, size):
            yield range(first, min(first + size, self._width), LANES)


def _has_many_registers() -> bool:
    """Whether sixteen vectors of sums fit into registers beside what is added to them."""
    return current_isa() in (CpuIsa.AVX512, CpuIsa.AVX512_BF16, CpuIsa.AMX)
