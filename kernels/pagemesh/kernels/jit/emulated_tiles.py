"""Tile registers in ordinary vector code, bit for bit as `tile_registers` says: for tests without AMX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llvmlite import ir

from pagemesh.kernels.jit.emit import I8, I32, I64, LANES, VEC, VEC_I32, Emitter
from pagemesh.kernels.jit.loops import fold
from pagemesh.kernels.jit.pair_dots import flushed, half_of_pairs

_ROWS: Final = 16
_ROW_BYTES: Final = 64


class EmulatedTiles:
    """`TileRegisters` in memory."""

    def __init__(self, e: Emitter) -> None:
        self._e, self._b = e, e.builder
        self._tiles = e.scratch(8 * _ROWS * _ROW_BYTES, I8)
        self._counts = e.scratch(8, I64)

    def configure(self, rows: Sequence[ir.Value]) -> None:
        for tile, count in enumerate(rows):
            self._b.store(count, self._e.at(self._counts, self._e.int64(tile)))
            self.zero(tile)

    def release(self) -> None:
        pass

    def zero(self, tile: int) -> None:
        e = self._e
        with e.loop(e.int64(0), e.int64(_ROWS)) as row:
            e.store(ir.Constant(VEC_I32, [0] * LANES), self._row(tile, row), 64)

    def load(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        with self._e.loop(self._e.int64(0), self._count(tile)) as row:
            line = self._read(self._line(address, row, stride), 1)
            self._e.store(line, self._row(tile, row), 64)

    def store(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        with self._e.loop(self._e.int64(0), self._count(tile)) as row:
            line = self._read(self._row(tile, row), 64)
            self._e.store(line, self._line(address, row, stride), 1)

    def multiply(self, sums: int, left: int, right: int) -> None:
        e, b = self._e, self._b
        with e.loop(e.int64(0), self._count(sums)) as row:
            place = self._row(sums, row)
            before = flushed(e, b.bitcast(self._read(place, 64), VEC))
            even, odd = self._products(self._row(left, row), right)
            total = flushed(e, b.fadd(even, odd))
            e.store(flushed(e, b.fadd(before, total)), place, 64)

    def _products(self, left: ir.Value, right: int) -> list[ir.Value]:
        """Of one row: the sums of the first of each pair, and of the second."""
        e, b = self._e, self._b
        pairs = b.bitcast(left, I32.as_pointer())

        def add_pair(index: ir.Value, totals: Sequence[ir.Value]) -> list[ir.Value]:
            weights = self._read(self._row(right, index), 64)
            inputs = e.broadcast(b.load(e.at(pairs, index)), VEC_I32)
            grown = []
            for is_upper, total in zip((False, True), totals, strict=True):
                x, y = (
                    flushed(e, half_of_pairs(e, each, is_upper=is_upper))
                    for each in (inputs, weights)
                )
                grown.append(flushed(e, e.fma(x, y, total)))
            return grown

        return fold(e, e.int64(_ROWS), [e.splat(0.0)] * 2, add_pair)

    def _read(self, address: ir.Value, align: int) -> ir.Value:
        line = self._b.load(self._b.bitcast(address, VEC_I32.as_pointer()))
        line.align = align
        return line

    def _line(self, address: ir.Value, row: ir.Value, stride: ir.Value) -> ir.Value:
        begin = self._b.bitcast(address, I8.as_pointer())
        return self._e.at(begin, self._b.mul(row, stride))

    def _row(self, tile: int, row: ir.Value) -> ir.Value:
        offset = self._b.mul(row, self._e.int64(_ROW_BYTES))
        return self._e.at(
            self._tiles, self._b.add(offset, self._e.int64(tile * _ROWS * _ROW_BYTES))
        )

    def _count(self, tile: int) -> ir.Value:
        return self._b.load(self._e.at(self._counts, self._e.int64(tile)))
