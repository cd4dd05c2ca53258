"""A tile of keys and values in bfloat16 on AMX's tile registers (Sapphire Rapids and later)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llvmlite import ir

from pagemesh.kernels.jit.elements import store_elements
from pagemesh.kernels.jit.emit import I16, I64, LANES, Emitter
from pagemesh.kernels.jit.tile_registers import TILE_BYTES, TILE_ROWS, tile_registers
from pagemesh.kernels.paged_attention.cpu_pairs import TilePairs
from pagemesh.kernels.paged_attention.cpu_tile import ROWS, KernelShape, TileSlots

# Registers: sums of up to 16 rows by four times 16 columns; the rows; the columns, two in turn.
_SUMS: Final = (0, 1, 2, 3)
_LEFT: Final = 4
_RIGHT: Final = (6, 7)
_STEP: Final = TILE_BYTES // 2
"""Inputs, of a row, of one product."""


class AmxTile:
    """Implements `Tile`: 16 rows are multiplied with 16 keys, or with 16 dimensions of values, at once.

    Between the products of keys and those of values, scores and weights wait in memory: 16 rows of them.
    Weights are rounded to bfloat16, as everywhere in fused attention.
    """

    def __init__(
        self, e: Emitter, shape: KernelShape, pairs: TilePairs, scale: ir.Value, sums: ir.Value
    ) -> None:
        """`sums` is [rows, width], where the weighted values are added up."""
        self._e, self._b = e, e.builder
        self._width = shape.width
        self._num_keys = shape.num_keys
        self._scale = scale
        self._sums = sums
        self._pairs = pairs
        self._scores = e.scratch(TILE_ROWS * shape.num_keys)
        self._weights = e.scratch(TILE_ROWS * shape.num_keys, I16)
        self._registers = tile_registers(e)
        self._configured = e.scratch(1, I64)
        with e.builder.goto_entry_block():
            e.builder.store(e.int64(0), self._configured)

    def read_query(self, row: ir.Value, source: ir.Value) -> None:
        self._pairs.read_query(row, source)

    def read(self, slots: TileSlots) -> None:
        self._pairs.read(slots)

    def multiply_keys(self, first_row: ir.Value, num_rows: ir.Value) -> None:
        e, b = self._e, self._b
        self._configure(num_rows)
        queries = e.at(self._pairs.queries, b.mul(first_row, e.int64(self._width)))
        for first in range(0, self._num_keys, LANES * len(_SUMS)):
            columns = range(first, min(first + LANES * len(_SUMS), self._num_keys), LANES)
            for sums, _ in zip(_SUMS, columns, strict=False):
                self._registers.zero(sums)
            for dim in range(0, self._width, _STEP):
                left = e.at(queries, e.int64(dim))
                keys = e.at(self._pairs.keys, e.int64(dim * self._num_keys))
                self._multiply(left, self._width, keys, self._num_keys, columns)
            for sums, column in zip(_SUMS, columns, strict=False):
                place = e.at(self._scores, e.int64(column))
                self._registers.store(sums, place, e.int64(self._num_keys * 4))

    def scores(self, row: ir.Value) -> list[list[ir.Value]]:
        e, b = self._e, self._b
        begin = self._place(row)
        scale = e.broadcast(self._scale)
        return [
            [
                b.fmul(e.load(e.at(self._scores, b.add(begin, e.int64(offset))), 64), scale)
                for offset in range(index * self._num_keys, (index + 1) * self._num_keys, LANES)
            ]
            for index in range(ROWS)
        ]

    def add_values(
        self,
        row: ir.Value,
        weights: Sequence[Sequence[ir.Value]],
        corrections: Sequence[ir.Value],
    ) -> None:
        """See `Tile`; the weights are kept for `multiply_values`."""
        e, b = self._e, self._b
        begin = self._place(row)
        for index, of_row in enumerate(weights):
            for number, vector in enumerate(of_row):
                place = b.add(begin, e.int64(index * self._num_keys + number * LANES))
                store_elements(e, vector, e.at(self._weights, place), "bfloat16")
        for index, correction in enumerate(corrections):
            begin = b.mul(b.add(row, e.int64(index)), e.int64(self._width))
            for offset in range(0, self._width, LANES):
                address = e.at(self._sums, b.add(begin, e.int64(offset)))
                e.store(b.fmul(e.load(address, 64), correction), address, 64)

    def multiply_values(self, first_row: ir.Value, num_rows: ir.Value) -> None:
        """See `Tile`; the registers are as `multiply_keys` has left them."""
        e, b = self._e, self._b
        rows = e.at(self._sums, b.mul(first_row, e.int64(self._width)))
        stride = e.int64(self._width * 4)
        for first in range(0, self._width, LANES * len(_SUMS)):
            columns = range(first, min(first + LANES * len(_SUMS), self._width), LANES)
            for sums, column in zip(_SUMS, columns, strict=False):
                self._registers.load(sums, e.at(rows, e.int64(column)), stride)
            for key in range(0, self._num_keys, _STEP):
                left = e.at(self._weights, e.int64(key))
                values = e.at(self._pairs.values, e.int64(key * self._width))
                self._multiply(left, self._num_keys, values, self._width, columns)
            for sums, column in zip(_SUMS, columns, strict=False):
                self._registers.store(sums, e.at(rows, e.int64(column)), stride)

    def close(self) -> None:
        self._registers.release()

    def _multiply(
        self,
        left: ir.Value,
        left_width: int,
        right: ir.Value,
        right_width: int,
        columns: Sequence[int],
    ) -> None:
        """Add the products of 32 inputs to the sums of some columns; `right` has pairs side by side."""
        e = self._e
        self._registers.load(_LEFT, left, e.int64(left_width * 2))
        for number, (sums, column) in enumerate(zip(_SUMS, columns, strict=False)):
            register = _RIGHT[number % len(_RIGHT)]
            self._registers.load(
                register, e.at(right, e.int64(column * 2)), e.int64(right_width * 4)
            )
            self._registers.multiply(sums, _LEFT, register)

    def _configure(self, num_rows: ir.Value) -> None:
        """Unless it is as it must be already: it takes as long as ten products."""
        e, b = self._e, self._b
        with b.if_then(b.icmp_signed("!=", b.load(self._configured), num_rows)):
            b.store(num_rows, self._configured)
            full = e.int64(TILE_ROWS)
            self._registers.configure([num_rows] * 6 + [full] * 2)

    def _place(self, row: ir.Value) -> ir.Value:
        """Where a row's scores and weights begin."""
        b = self._b
        return b.mul(b.and_(row, self._e.int64(TILE_ROWS - 1)), self._e.int64(self._num_keys))
