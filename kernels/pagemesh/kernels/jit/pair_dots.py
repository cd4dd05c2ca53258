"""Sums of products of pairs of bfloat16: an instruction of AVX512-BF16, or of NEON, which rounds otherwise."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa, processor_isas
from pagemesh.kernels.jit.eight_bits import widen_fp8, widen_int8
from pagemesh.kernels.jit.emit import F32, I16, LANES, VEC, VEC_I32, Emitter, int_lanes


def dot_pairs(e: Emitter, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """`total` [16] + x[2 i] · y[2 i] + x[2 i + 1] · y[2 i + 1], pairs as 32-bit numbers [16].

    Without an instruction it is what AVX512-BF16's makers write of theirs; that is for tests alone.
    """
    if current_isa() == CpuIsa.NEON_BF16:
        return _neon_dots(e, total, x, y)
    if CpuIsa.AVX512_BF16 in processor_isas():
        return e.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", VEC, total, x, y)
    for is_upper in (True, False):
        own, other = (flushed(e, half_of_pairs(e, pairs, is_upper=is_upper)) for pairs in (x, y))
        total = flushed(e, e.fma(own, other, flushed(e, total)))
    return total


class _BFloatType(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for; never looked into."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloatType)

    def __hash__(self) -> int:
        return hash("bfloat")


def _neon_dots(e: Emitter, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """BFDOT, four sums at a time: both products and their sum are rounded, and what is tiny is zero."""
    b = e.builder
    sums, pairs = ir.VectorType(F32, 4), ir.VectorType(_BFloatType(), 8)
    parts = []
    for first in range(0, LANES, 4):
        lanes = range(first, first + 4)
        own, other = (b.bitcast(e.shuffle(each, each, list(lanes)), pairs) for each in (x, y))
        part = e.shuffle(total, total, lanes)
        parts.append(e.intrinsic("llvm.aarch64.neon.bfdot.v4f32.v8bf16", sums, part, own, other))
    lower, upper = (
        e.shuffle(first, second, range(8))
        for first, second in zip(parts[::2], parts[1::2], strict=True)
    )
    return e.shuffle(lower, upper, range(LANES))


def half_of_pairs(e: Emitter, pairs: ir.Value, *, is_upper: bool) -> ir.Value:
    """The second of each pair of bfloat16, or the first, as floats."""
    b = e.builder
    raw = b.and_(pairs, int_lanes(-65536)) if is_upper else b.shl(pairs, int_lanes(16))
    return b.bitcast(raw, VEC)


def round_to_bfloat16(e: Emitter, vector: ir.Value) -> ir.Value:
    """16 floats, none of which is NaN, rounded to what bfloat16 has: to nearest, ties to even."""
    b = e.builder
    raw = b.bitcast(vector, VEC_I32)
    is_odd = b.and_(b.lshr(raw, int_lanes(16)), int_lanes(1))
    rounded = b.add(b.add(raw, int_lanes(0x7FFF)), is_odd)
    return b.bitcast(b.and_(rounded, int_lanes(-65536)), VEC)


def round_to_pairs(e: Emitter, first: ir.Value, second: ir.Value) -> ir.Value:
    """32 floats, none of which is NaN, as 16 pairs of bfloat16, in their order.

    What is below 2^-126 may be a zero of its sign: so products take it.
    """
    b = e.builder
    if CpuIsa.AVX512_BF16 in processor_isas():
        kind = ir.VectorType(_BFloatType(), 2 * LANES)
        pairs = e.intrinsic("llvm.x86.avx512bf16.cvtne2ps2bf16.512", kind, second, first)
        return b.bitcast(pairs, VEC_I32)
    numbers = ir.VectorType(I16, LANES)
    halves = [
        b.trunc(b.lshr(b.bitcast(round_to_bfloat16(e, each), VEC_I32), int_lanes(16)), numbers)
        for each in (first, second)
    ]
    first, second = halves
    return b.bitcast(e.shuffle(first, second, range(2 * LANES)), VEC_I32)


def eight_bit_pairs(e: Emitter, raw: ir.Value, dtype: str) -> ir.Value:
    """32 numbers in int8 or FP8 as 16 pairs of bfloat16, which has all of them exactly."""
    if dtype == "float8_e4m3fn" and CpuIsa.AVX512_BF16 in processor_isas():
        return e.builder.bitcast(_looked_up(e, raw), VEC_I32)
    floats = widen_fp8(e, raw) if dtype == "float8_e4m3fn" else widen_int8(e, raw)
    first, second = (e.shuffle(floats, floats, range(begin, begin + LANES)) for begin in (0, LANES))
    return round_to_pairs(e, first, second)


def _looked_up(e: Emitter, raw: ir.Value) -> ir.Value:
    """32 numbers in bfloat16 of FP8's, each half of whose sizes is a table of two registers: an instruction
    looks up by the lowest six bits."""
    b = e.builder
    kind = ir.VectorType(I16, 2 * LANES)

    def splat(number: int) -> ir.Constant:
        return ir.Constant(kind, [number] * (2 * LANES))

    wide = b.zext(raw, kind)
    small, large = (
        e.intrinsic("llvm.x86.avx512.vpermi2var.hi.512", kind, first, wide, second)
        for first, second in (_sizes(0), _sizes(64))
    )
    is_large = b.icmp_unsigned("!=", b.and_(wide, splat(0x40)), splat(0))
    sign = b.and_(b.shl(wide, splat(8)), splat(0x8000))
    return b.or_(b.select(is_large, large, small), sign)


def _sizes(first: int) -> tuple[ir.Constant, ir.Constant]:
    """The bits in bfloat16 of 64 numbers in FP8 without a sign, from that with the bits `first` on."""
    codes = np.arange(first, first + 64)
    exponents, fractions = codes >> 3, codes & 7
    floats = np.where(
        exponents > 0, (8 + fractions) * 2.0 ** (exponents - 10.0), fractions * 2.0**-9
    )
    bits = floats.astype(np.float32).view(np.uint32) >> 16
    bits[codes == 0x7F] = 0x7FC0  # no number
    kind = ir.VectorType(I16, 2 * LANES)
    lower, upper = (ir.Constant(kind, half.tolist()) for half in bits.reshape(2, 2 * LANES))
    return lower, upper


def flushed(e: Emitter, vector: ir.Value) -> ir.Value:
    """16 floats, with zeros of the same sign for what is below 2^-126."""
    b = e.builder
    raw = b.bitcast(vector, VEC_I32)
    exponent = b.and_(raw, int_lanes(0x7F800000))
    is_small = b.icmp_signed("==", exponent, int_lanes(0))
    sign = b.and_(raw, int_lanes(-(1 << 31)))
    return b.bitcast(b.select(is_small, sign, raw), VEC)
