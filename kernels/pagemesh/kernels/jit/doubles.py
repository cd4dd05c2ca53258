"""Vectors of 16 numbers of float64, as two of 8. The same bits on every processor, as in `emit`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from llvmlite import ir

from pagemesh.kernels.jit.emit import I32, I64, Emitter

DOUBLE: Final = ir.DoubleType()

_HALF: Final = 8
_DOUBLES: Final = ir.VectorType(DOUBLE, _HALF)
_WORDS: Final = ir.VectorType(I64, _HALF)
_LINE_BYTES: Final = 64

_LEAST_EXPONENT: Final = -700.0
"""e to the power of what is below it is 0 here; e to it is a normal number."""
_ROUNDING: Final = 1.5 * 2.0**52
"""What this is added to is a whole number, which is its lowest bits."""
_DIGITS: Final = 52
_LN2_HIGH: Final = float.fromhex("0x1.62e42fefa38p-1")
"""ln 2 so far that its product with an exponent is exact."""
_LN2_LOW: Final = float.fromhex("0x1.ef35793c7673p-45")
_NUM_TERMS: Final = 14
"""Of the series; the next one is less than a rounding."""


def spread(e: Emitter, number: ir.Value | float) -> ir.Value:
    """A number in all lanes of a half."""
    if isinstance(number, float):
        return ir.Constant(_DOUBLES, [number] * _HALF)
    empty = ir.Constant(_DOUBLES, ir.Undefined)
    first = e.builder.insert_element(empty, number, ir.Constant(I32, 0))
    return e.builder.shuffle_vector(first, empty, _indices([0] * _HALF))


def widen(e: Emitter, vector: ir.Value) -> list[ir.Value]:
    """Halves of a vector of 16 floats."""
    b = e.builder
    lanes = (_indices(range(first, first + _HALF)) for first in (0, _HALF))
    return [b.fpext(b.shuffle_vector(vector, vector, each), _DOUBLES) for each in lanes]


def load_doubles(e: Emitter, address: ir.Value) -> list[ir.Value]:
    """Halves of 16 numbers at the begin of a line of the cache."""
    halves = []
    for first in (0, _HALF):
        place = e.builder.bitcast(e.at(address, e.int64(first)), _DOUBLES.as_pointer())
        halves.append(e.builder.load(place))
        halves[-1].align = _LINE_BYTES
    return halves


def store_doubles(e: Emitter, halves: Sequence[ir.Value], address: ir.Value) -> None:
    """Write them to the begin of a line of the cache."""
    for first, half in zip((0, _HALF), halves, strict=True):
        e.store(half, e.at(address, e.int64(first)), _LINE_BYTES)


def all_lanes(
    e: Emitter, half: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """What all numbers of a half are together; always by the same tree."""
    for distance in (4, 2, 1):
        lanes = _indices([lane ^ distance for lane in range(_HALF)])
        half = combine(half, e.builder.shuffle_vector(half, half, lanes))
    return e.builder.extract_element(half, ir.Constant(I32, 0))


def exp(e: Emitter, x: ir.Value) -> ir.Value:
    """e to the power of numbers that are not above 0, about a unit in the last place off at most; 0 far below.

    By a power of two and a series: x is n ln 2 and a rest of at most ln 2 / 2.
    """
    b = e.builder

    def fma(x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        return e.intrinsic(f"llvm.fma.v{_HALF}f64", _DOUBLES, x, y, z)

    least = spread(e, _LEAST_EXPONENT)
    is_far = b.fcmp_ordered("<", x, least)
    x = b.select(is_far, least, x)
    shifted = fma(x, spread(e, math.log2(math.e)), spread(e, _ROUNDING))
    power = b.fsub(shifted, spread(e, _ROUNDING))
    rest = fma(power, spread(e, -_LN2_HIGH), x)
    rest = fma(power, spread(e, -_LN2_LOW), rest)
    value = spread(e, 1 / math.factorial(_NUM_TERMS - 1))
    for term in range(_NUM_TERMS - 2, -1, -1):
        value = fma(value, rest, spread(e, 1 / math.factorial(term)))
    digits = ir.Constant(_WORDS, [_DIGITS] * _HALF)
    scaled = b.add(b.bitcast(value, _WORDS), b.shl(b.bitcast(shifted, _WORDS), digits))
    return b.select(is_far, spread(e, 0.0), b.bitcast(scaled, _DOUBLES))


def _indices(lanes: Sequence[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(I32, _HALF), list(lanes))
