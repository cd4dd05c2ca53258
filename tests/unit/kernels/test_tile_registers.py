"""Tiles, and pairs of bfloat16, held against a model of the instructions in numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from llvmlite import ir

from pagemesh.kernels.jit.compiled import CompiledFunction
from pagemesh.kernels.jit.cpu_isa import processor_isas, using_isa
from pagemesh.kernels.jit.emit import F32, I8, I32, Emitter
from pagemesh.kernels.jit.pair_dots import dot_pairs
from pagemesh.kernels.jit.tile_registers import EmulatedTiles, TileRegisters, tile_registers

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]
SMALLEST = np.float32(2.0**-126)


def flushed(values: Floats) -> Floats:
    """Zeros of the same sign for what is below 2^-126."""
    bits = values.view(np.uint32).copy()
    bits[(bits & 0x7F800000) == 0] &= 0x80000000
    return bits.view(np.float32)


def fma(x: Floats, y: Floats, z: Floats) -> Floats:
    """x · y + z of bfloat16 x and y, rounded to float32 once.

    The product is exact in float64; the sum is rounded to odd there, so that rounding it once more is as if
    it were the first time.
    """
    product, summand = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
    total = product + summand
    part = total - product
    error = (product - (total - part)) + (summand - part)
    bits = total.view(np.int64)
    is_inexact = (error != 0) & (bits & 1 == 0) & np.isfinite(total)
    is_outwards = (error > 0) == (total > 0)
    odd = np.where(is_inexact, np.where(is_outwards, bits + 1, bits - 1), bits)
    return odd.view(np.float64).astype(np.float32)


def halves(bits: Bits) -> Floats:
    """bfloat16 as float32, flushed."""
    return flushed((bits.astype(np.uint32) << 16).view(np.float32))


def tile_product(sums: Floats, left: Bits, right: Bits) -> Floats:
    """sums [M, 16] + left [M, 32] times right [16 pairs, 16 columns, 2]."""
    x, y = halves(left).reshape(len(left), 16, 2), halves(right)
    even = odd = np.zeros_like(sums)
    for pair in range(16):
        even = flushed(fma(x[:, pair, :1], y[pair, :, 0], even))
        odd = flushed(fma(x[:, pair, 1:], y[pair, :, 1], odd))
    return flushed(flushed(sums) + flushed(even + odd))


def random_bits(draw: np.random.Generator, *shape: int) -> Bits:
    """Numbers of all sizes, from those that are flushed to those whose products overflow."""
    signs = draw.integers(0, 2, shape) << 15
    exponents = np.where(
        draw.random(shape) < 0.8, draw.integers(120, 134, shape), draw.integers(0, 220, shape)
    )
    return (signs | exponents << 7 | draw.integers(0, 128, shape)).astype(np.uint16)


def compile_product(
    make: Callable[[Emitter], TileRegisters], rows: int, columns: int, *, is_int8: bool = False
) -> CompiledFunction:
    def emit(e: Emitter) -> None:
        tiles = make(e)
        sums, left, right = (e.argument(index, I8) for index in range(3))
        widths = [columns, 16, columns]
        tiles.configure([e.int64(rows), e.int64(rows), e.int64(16)], list(map(e.int64, widths)))
        for tile, (address, width) in enumerate(zip((sums, left, right), widths, strict=True)):
            tiles.load(tile, address, e.int64(4 * width))
        multiply = tiles.multiply_int8 if is_int8 else tiles.multiply
        multiply(0, 1, 2)
        tiles.store(0, sums, e.int64(4 * columns))
        tiles.release()
        e.builder.ret_void()

    return CompiledFunction(None, "product", emit)


def call(function: CompiledFunction, *arrays: npt.NDArray[np.generic]) -> None:
    addresses = (ctypes.c_int64 * len(arrays))(*(array.ctypes.data for array in arrays))
    function.call(ctypes.addressof(addresses))


# The second is the processor's own where it has tiles.
@pytest.mark.parametrize("make", [EmulatedTiles, tile_registers])
@pytest.mark.parametrize("rows", [1, 7, 16])
@pytest.mark.parametrize("columns", [1, 5, 16])
def test_tiles_compute_what_the_instruction_does(
    make: Callable[[Emitter], TileRegisters], rows: int, columns: int
) -> None:
    with using_isa(processor_isas()[0]):
        function = compile_product(make, rows, columns)
    draw = np.random.default_rng(rows)
    for _ in range(50):
        left, right = random_bits(draw, rows, 32), random_bits(draw, 16, columns, 2)
        sums = draw.standard_normal((rows, columns)).astype(np.float32)
        sums[draw.random(sums.shape) < 0.1] = SMALLEST / 4
        with np.errstate(all="ignore"):
            expected = tile_product(sums, left, right)
        call(function, sums, left, right)
        assert np.array_equal(sums, expected, equal_nan=True)


@pytest.mark.parametrize("make", [EmulatedTiles, tile_registers])
@pytest.mark.parametrize("rows", [1, 7, 16])
def test_tiles_add_whole_numbers(make: Callable[[Emitter], TileRegisters], rows: int) -> None:
    with using_isa(processor_isas()[0]):
        function = compile_product(make, rows, 16, is_int8=True)
    draw = np.random.default_rng(rows)
    for _ in range(50):
        left = draw.integers(-128, 128, (rows, 64)).astype(np.int8)
        right = draw.integers(-128, 128, (16, 16, 4)).astype(np.int8)
        sums = draw.integers(-(2**30), 2**30, (rows, 16)).astype(np.int32)
        columns = right.astype(np.int32).transpose(0, 2, 1).reshape(64, 16)
        expected = sums + left.astype(np.int32) @ columns
        call(function, sums, left, right)
        assert np.array_equal(sums, expected)


def test_pairs_are_added_one_after_the_other() -> None:
    """Where the processor has the instruction it computes; else what is written of it."""

    def emit(e: Emitter) -> None:
        total, x, y = (e.argument(index, kind) for index, kind in enumerate((F32, I32, I32)))
        grown = dot_pairs(e, e.load(total), *(_line(e, address) for address in (x, y)))
        e.store(grown, total)
        e.builder.ret_void()

    function = CompiledFunction(None, "dots", emit)
    draw = np.random.default_rng(3)
    for _ in range(200):
        first, second = (draw.integers(-8, 9, (16, 2)).astype(np.float32) for _ in range(2))
        left, right = ((each.view(np.uint32) >> 16).astype(np.uint16) for each in (first, second))
        sums = draw.integers(-100, 101, 16).astype(np.float32)
        expected = sums + (first * second).sum(axis=1)
        call(function, sums, left, right)
        assert np.array_equal(sums, expected)


def _line(e: Emitter, address: ir.Value) -> ir.Value:
    line = e.builder.load(e.builder.bitcast(address, ir.VectorType(I32, 16).as_pointer()))
    line.align = 4
    return line
