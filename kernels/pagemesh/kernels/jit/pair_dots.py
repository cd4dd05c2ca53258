"""Sums of products of pairs of bfloat16: AVX512-BF16's instruction, or what its makers write of it."""

from __future__ import annotations

from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import CpuIsa, processor_isas
from pagemesh.kernels.jit.emit import LANES, VEC, VEC_I32, Emitter


def dot_pairs(e: Emitter, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """`total` [16] + x[2 i] · y[2 i] + x[2 i + 1] · y[2 i + 1], pairs as 32-bit numbers [16].

    Processors without the instruction come here in tests alone.
    """
    if CpuIsa.AVX512_BF16 in processor_isas():
        return e.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", VEC, total, x, y)
    for is_upper in (True, False):
        own, other = (flushed(e, half_of_pairs(e, pairs, is_upper=is_upper)) for pairs in (x, y))
        total = flushed(e, e.fma(own, other, flushed(e, total)))
    return total


def half_of_pairs(e: Emitter, pairs: ir.Value, *, is_upper: bool) -> ir.Value:
    """The second of each pair of bfloat16, or the first, as floats."""
    b = e.builder
    if is_upper:
        raw = b.and_(pairs, ir.Constant(VEC_I32, [-65536] * LANES))
    else:
        raw = b.shl(pairs, ir.Constant(VEC_I32, [16] * LANES))
    return b.bitcast(raw, VEC)


def flushed(e: Emitter, vector: ir.Value) -> ir.Value:
    """16 floats, with zeros of the same sign for what is below 2^-126."""
    b = e.builder
    raw = b.bitcast(vector, VEC_I32)
    exponent = b.and_(raw, ir.Constant(VEC_I32, [0x7F800000] * LANES))
    is_small = b.icmp_signed("==", exponent, ir.Constant(VEC_I32, [0] * LANES))
    sign = b.and_(raw, ir.Constant(VEC_I32, [-(1 << 31)] * LANES))
    return b.bitcast(b.select(is_small, sign, raw), VEC)
