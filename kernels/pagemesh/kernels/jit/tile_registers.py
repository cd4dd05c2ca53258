"""AMX's eight tile registers: each call emits one instruction, in the order written.

Intrinsics that name the register are opaque to LLVM's optimizer: nothing is moved or spilled behind a
kernel's back. What the product computes, for each sum and in float32 to nearest even, was held against an
Intel Xeon:

    even = odd = +0
    for each of 16 pairs of inputs: even = fma(x[2 k], y[2 k], even); odd = fma(x[2 k + 1], y[2 k + 1], odd)
    sum = sum + (even + odd)

where every input, sum and result below 2^-126 is a zero of its sign, whatever MXCSR says. Rows do not
influence each other, their number does not matter, and zeros behind the inputs change nothing. For tests without AMX
the same is there in ordinary vector code, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from llvmlite import ir

from pagemesh.kernels.jit.byte_dots import signed_byte
from pagemesh.kernels.jit.cpu_isa import CpuIsa, has_feature, may_use_tiles, processor_isas
from pagemesh.kernels.jit.emit import I8, I16, I32, I64, LANES, VEC, VEC_I32, Emitter, fold
from pagemesh.kernels.jit.pair_dots import flushed, half_of_pairs

TILE_ROWS: Final = 16
TILE_BYTES: Final = 64
"""Of a row of a tile: 32 inputs, or 16 sums."""


class TileRegisters(Protocol):
    """Eight tiles, by their numbers."""

    def configure(
        self, rows: Sequence[ir.Value], columns: Sequence[ir.Value] | None = None
    ) -> None:
        """Rows of each of the tiles, and how many numbers of 32 bits in each of its rows: at least one, 16 of both if
        nothing is said; all tiles are zeros then."""

    def release(self) -> None:
        """Leave them empty: their 8 KiB then need not be saved when threads take turns."""

    def zero(self, tile: int) -> None:
        """All of it."""

    def load(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        """Its rows, `stride` bytes apart."""

    def store(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        """The same the other way."""

    def multiply(self, sums: int, left: int, right: int) -> None:
        """sums[m, n] += Σ left[m, k] · right[k, n], `right` with the inputs of a pair side by side."""

    def multiply_int8(self, sums: int, left: int, right: int) -> None:
        """The same of int8 into int32, exact but for multiples of 2^32: `right` has four inputs side by side."""


def multiplies_int8() -> bool:
    """Whether `tile_registers` can multiply bytes; emulated ones can."""
    return CpuIsa.AMX not in processor_isas() or has_feature("amx-int8")


def tile_registers(e: Emitter) -> TileRegisters:
    """The processor's; where there are none, or Linux refuses them, code that gives the same bits, for tests.

    Asks for the permission without which the first instruction would end the process.
    """
    has_tiles = CpuIsa.AMX in processor_isas() and may_use_tiles()
    return _Registers(e) if has_tiles else EmulatedTiles(e)


class _Registers:
    def __init__(self, e: Emitter) -> None:
        self._e = e
        self._configuration = e.scratch(64, I8)

    def configure(
        self, rows: Sequence[ir.Value], columns: Sequence[ir.Value] | None = None
    ) -> None:
        e, b = self._e, self._e.builder
        for offset in range(0, 64, 8):
            self._write(offset, I64, e.int64(0))
        self._write(0, I8, ir.Constant(I8, 1))  # the palette
        for tile, (count, width) in enumerate(zip(rows, columns or _full(e, rows), strict=True)):
            self._write(16 + 2 * tile, I16, b.trunc(b.mul(width, e.int64(4)), I16))
            self._write(48 + tile, I8, b.trunc(count, I8))
        e.intrinsic("llvm.x86.ldtilecfg", ir.VoidType(), self._configuration)

    def _write(self, offset: int, kind: ir.Type, value: ir.Value) -> None:
        b = self._e.builder
        place = self._e.at(self._configuration, self._e.int64(offset))
        b.store(value, b.bitcast(place, kind.as_pointer()))

    def release(self) -> None:
        self._e.intrinsic("llvm.x86.tilerelease", ir.VoidType())

    def zero(self, tile: int) -> None:
        self._e.intrinsic("llvm.x86.tilezero", ir.VoidType(), ir.Constant(I8, tile))

    def load(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        self._move("llvm.x86.tileloadd64", tile, address, stride)

    def store(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        self._move("llvm.x86.tilestored64", tile, address, stride)

    def _move(self, name: str, tile: int, address: ir.Value, stride: ir.Value) -> None:
        address = self._e.builder.bitcast(address, I8.as_pointer())
        self._e.intrinsic(name, ir.VoidType(), ir.Constant(I8, tile), address, stride)

    def multiply(self, sums: int, left: int, right: int) -> None:
        tiles = [ir.Constant(I8, tile) for tile in (sums, left, right)]
        self._e.intrinsic("llvm.x86.tdpbf16ps", ir.VoidType(), *tiles)

    def multiply_int8(self, sums: int, left: int, right: int) -> None:
        tiles = [ir.Constant(I8, tile) for tile in (sums, left, right)]
        self._e.intrinsic("llvm.x86.tdpbssd", ir.VoidType(), *tiles)


class EmulatedTiles:
    """`TileRegisters` in memory."""

    def __init__(self, e: Emitter) -> None:
        self._e, self._b = e, e.builder
        self._tiles = e.scratch(8 * TILE_ROWS * TILE_BYTES, I8)
        self._counts = e.scratch(8, I64)
        self._widths = e.scratch(8, I64)

    def configure(
        self, rows: Sequence[ir.Value], columns: Sequence[ir.Value] | None = None
    ) -> None:
        e, b = self._e, self._b
        for tile, (count, width) in enumerate(zip(rows, columns or _full(e, rows), strict=True)):
            b.store(count, e.at(self._counts, e.int64(tile)))
            b.store(width, e.at(self._widths, e.int64(tile)))
            self.zero(tile)

    def release(self) -> None:
        pass

    def zero(self, tile: int) -> None:
        e = self._e
        with e.loop(e.int64(0), e.int64(TILE_ROWS)) as row:
            e.store(ir.Constant(VEC_I32, [0] * LANES), self._row(tile, row), 64)

    def load(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        e, b = self._e, self._b
        nothing = ir.Constant(VEC_I32, None)
        with e.loop(e.int64(0), self._count(tile)) as row:
            place = b.bitcast(self._line(address, row, stride), VEC_I32.as_pointer())
            name, one = "llvm.masked.load.v16i32.p0", ir.Constant(I32, 1)
            line = e.intrinsic(name, VEC_I32, place, one, self._is_there(tile), nothing)
            e.store(line, self._row(tile, row), 64)

    def store(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        e, b = self._e, self._b
        with e.loop(e.int64(0), self._count(tile)) as row:
            line = self._read(self._row(tile, row), 64)
            place = b.bitcast(self._line(address, row, stride), VEC_I32.as_pointer())
            name, one = "llvm.masked.store.v16i32.p0", ir.Constant(I32, 1)
            e.intrinsic(name, ir.VoidType(), line, place, one, self._is_there(tile))

    def multiply(self, sums: int, left: int, right: int) -> None:
        e, b = self._e, self._b
        with e.loop(e.int64(0), self._count(sums)) as row:
            place = self._row(sums, row)
            before = flushed(e, b.bitcast(self._read(place, 64), VEC))
            even, odd = self._products(self._row(left, row), right)
            total = flushed(e, b.fadd(even, odd))
            e.store(flushed(e, b.fadd(before, total)), place, 64)

    def multiply_int8(self, sums: int, left: int, right: int) -> None:
        e, b = self._e, self._b
        with e.loop(e.int64(0), self._count(sums)) as row:
            place = self._row(sums, row)
            quads = b.bitcast(self._row(left, row), I32.as_pointer())

            def add_quad(index: ir.Value, totals: Sequence[ir.Value]) -> list[ir.Value]:
                inputs = e.broadcast(b.load(e.at(quads, index)), VEC_I32)
                weights = self._read(self._row(right, index), 64)
                (total,) = totals
                for number in range(4):
                    x, y = (signed_byte(e, each, number) for each in (inputs, weights))
                    total = b.add(total, b.mul(x, y))
                return [total]

            (total,) = fold(e, e.int64(TILE_ROWS), [self._read(place, 64)], add_quad)
            e.store(total, place, 64)

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

        return fold(e, e.int64(TILE_ROWS), [e.splat(0.0)] * 2, add_pair)

    def _read(self, address: ir.Value, align: int) -> ir.Value:
        line = self._b.load(self._b.bitcast(address, VEC_I32.as_pointer()))
        line.align = align
        return line

    def _line(self, address: ir.Value, row: ir.Value, stride: ir.Value) -> ir.Value:
        begin = self._b.bitcast(address, I8.as_pointer())
        return self._e.at(begin, self._b.mul(row, stride))

    def _row(self, tile: int, row: ir.Value) -> ir.Value:
        offset = self._b.mul(row, self._e.int64(TILE_BYTES))
        return self._e.at(
            self._tiles, self._b.add(offset, self._e.int64(tile * TILE_ROWS * TILE_BYTES))
        )

    def _count(self, tile: int) -> ir.Value:
        return self._b.load(self._e.at(self._counts, self._e.int64(tile)))

    def _is_there(self, tile: int) -> ir.Value:
        """Of the numbers of a row."""
        e, b = self._e, self._b
        width = b.trunc(b.load(e.at(self._widths, e.int64(tile))), I32)
        lanes = ir.Constant(VEC_I32, list(range(LANES)))
        return b.icmp_signed("<", lanes, e.broadcast(width, VEC_I32))


def _full(e: Emitter, rows: Sequence[ir.Value]) -> list[ir.Value]:
    return [e.int64(LANES)] * len(rows)
