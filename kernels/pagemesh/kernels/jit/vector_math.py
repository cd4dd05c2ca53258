"""Arithmetic on vectors that takes several instructions; every sum is always the same tree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from pagemesh.kernels.jit.emit import LANES, VEC, VEC_I32, Emitter

# Every second lane of two vectors within each 128 bits: a cheap shuffle.
_WITHIN_QUADS = [lane for quad in (0, 4, 8, 12) for lane in (quad, quad + 2, quad + 16, quad + 18)]


def maximum(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """Lane by lane; `y` where one is NaN."""
    b = e.builder
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def minimum(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """Lane by lane; a NaN loses."""
    return e.call("llvm.minnum", x, y)


def max_each(e: Emitter, vectors: Sequence[ir.Value]) -> ir.Value:
    """The greatest lane of each of 4 vectors, four times over in one vector."""
    beside = [lane + 1 for lane in _WITHIN_QUADS]
    while len(vectors) > 1:
        vectors = [
            maximum(e, e.shuffle(x, y, _WITHIN_QUADS), e.shuffle(x, y, beside))
            for x, y in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    (quads,) = vectors
    for distance in (8, 4):
        lanes = [(lane + distance) % LANES for lane in range(LANES)]
        quads = maximum(e, quads, e.shuffle(quads, quads, lanes))
    return quads


def sum_lanes(e: Emitter, vector: ir.Value) -> ir.Value:
    """The sum of the lanes, in all lanes; always the same tree."""
    for distance in (8, 4, 2, 1):
        lanes = [lane ^ distance for lane in range(LANES)]
        vector = e.builder.fadd(vector, e.shuffle(vector, vector, lanes))
    return vector


def transposed(e: Emitter, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """16 vectors whose lanes are the rows of the 16 given ones."""
    for distance in (8, 4, 2, 1):
        rows = _exchanged(e, rows, distance)
    return list(rows)


def _exchanged(e: Emitter, rows: Sequence[ir.Value], distance: int) -> list[ir.Value]:
    """The off-diagonal quarters of all squares of 2 · distance lanes and rows, exchanged."""
    turned = list(rows)
    lanes = range(LANES)
    first = [lane if not lane & distance else lane - distance + LANES for lane in lanes]
    second = [lane + distance if not lane & distance else lane + LANES for lane in lanes]
    for index in lanes:
        if not index & distance:
            upper, lower = rows[index], rows[index + distance]
            turned[index] = e.shuffle(upper, lower, first)
            turned[index + distance] = e.shuffle(upper, lower, second)
    return turned


def exp(e: Emitter, x: ir.Value) -> ir.Value:
    """e^x for x <= 88, to about 1e-7; below -87 about 0, NaN stays NaN. After Cephes' expf."""
    builder = e.builder
    is_tiny = builder.fcmp_ordered("<", x, e.splat(-87.0))
    x = builder.select(is_tiny, e.splat(-87.0), x)
    n = e.call("llvm.rint", builder.fmul(x, e.splat(1.44269504088896341)))
    r = e.fma(n, e.splat(-0.693359375), x)
    r = e.fma(n, e.splat(2.12194440e-4), r)
    y = e.splat(1.9875691500e-4)
    for coefficient in (
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    ):
        y = e.fma(y, r, e.splat(coefficient))
    y = e.fma(builder.fmul(y, r), r, builder.fadd(r, e.splat(1.0)))
    exponent = builder.add(builder.fptosi(n, VEC_I32), ir.Constant(VEC_I32, [127] * LANES))
    power = builder.bitcast(builder.shl(exponent, ir.Constant(VEC_I32, [23] * LANES)), VEC)
    return builder.fmul(y, power)


def sigmoid(e: Emitter, x: ir.Value) -> ir.Value:
    """1 / (1 + e^-x)."""
    b = e.builder
    power = exp(e, minimum(e, b.fneg(x), e.splat(88.0)))
    return b.fdiv(e.splat(1.0), b.fadd(e.splat(1.0), power))


def normal_share(e: Emitter, x: ir.Value) -> ir.Value:
    """Φ(x), the share of a normal distribution below x, to about 1e-7.

    By formula 7.1.26 of Abramowitz and Stegun, Handbook of Mathematical Functions (1964): for z >= 0,
    erfc z = (a1 t + … + a5 t^5) · e^(-z²) with t = 1 / (1 + p z).
    """
    b = e.builder
    # Φ(-13) is below all floats.
    distance = minimum(e, e.call("llvm.fabs", x), e.splat(13.0))
    z = b.fmul(distance, e.splat(math.sqrt(0.5)))
    t = b.fdiv(e.splat(1.0), e.fma(z, e.splat(0.3275911), e.splat(1.0)))
    y = e.splat(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        y = e.fma(y, t, e.splat(coefficient))
    power = exp(e, b.fneg(b.fmul(z, z)))
    tail = b.fmul(b.fmul(e.splat(0.5), b.fmul(y, t)), power)
    is_below = b.fcmp_ordered("<", x, e.splat(0.0))
    return b.select(is_below, tail, b.fsub(e.splat(1.0), tail))


def clamp(e: Emitter, x: ir.Value, least: float, greatest: float) -> ir.Value:
    """Between two numbers; NaN stays NaN."""
    b = e.builder
    x = b.select(b.fcmp_ordered("<", x, e.splat(least)), e.splat(least), x)
    return b.select(b.fcmp_ordered(">", x, e.splat(greatest)), e.splat(greatest), x)
