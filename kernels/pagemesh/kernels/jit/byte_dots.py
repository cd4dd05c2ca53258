"""Exact sums of products of bytes: AVX512-VNNI's instruction, that of words which SSE2 brought, or what LLVM makes."""

from __future__ import annotations

from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import (
    CpuIsa,
    current_isa,
    has_avx512,
    has_feature,
    processor_isas,
)
from pagemesh.kernels.jit.emit import I16, I32, LANES, VEC_I32, Emitter, int_lanes

_WORDS = ir.VectorType(I16, 2 * LANES)


def has_quad_dots() -> bool:
    """Whether the class's processors may have `dot_quads`, and this one does."""
    return has_avx512() and has_feature("avx512vnni")


def dot_quads(e: Emitter, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """`total` [16] + Σ x[4 i + k] · y[4 i + k], of four unsigned and four signed bytes as 32-bit numbers [16]."""
    return e.intrinsic("llvm.x86.avx512.vpdpbusd.512", VEC_I32, total, x, y)


def dot_words(e: Emitter, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """`total` [16] + x[2 i] · y[2 i] + x[2 i + 1] · y[2 i + 1], of signed words [32] that were bytes."""
    b = e.builder
    if has_avx512():
        return b.add(total, e.intrinsic("llvm.x86.avx512.pmaddw.d.512", VEC_I32, x, y))
    if current_isa() != CpuIsa.GENERIC and CpuIsa.AVX2 in processor_isas():
        half = ir.VectorType(I32, LANES // 2)
        sums = []
        for first in (0, LANES):
            own, other = (e.shuffle(each, each, range(first, first + LANES)) for each in (x, y))
            sums.append(e.intrinsic("llvm.x86.avx2.pmadd.wd", half, own, other))
        lower, upper = sums
        return b.add(total, e.shuffle(lower, upper, range(LANES)))
    wide = ir.VectorType(I32, 2 * LANES)
    products = b.mul(b.sext(x, wide), b.sext(y, wide))
    even, odd = (e.shuffle(products, products, range(k, 2 * LANES, 2)) for k in (0, 1))
    return b.add(total, b.add(even, odd))


def words_of_bytes(e: Emitter, address: ir.Value) -> ir.Value:
    """32 signed bytes as words."""
    b = e.builder
    kind = ir.VectorType(ir.IntType(8), 2 * LANES)
    numbers = b.load(b.bitcast(address, kind.as_pointer()))
    numbers.align = 32
    return b.sext(numbers, _WORDS)


def pair_of_words(e: Emitter, address: ir.Value) -> ir.Value:
    """Two words, by turns in 32 lanes."""
    b = e.builder
    pair = b.load(b.bitcast(address, I32.as_pointer()))
    pair.align = 4
    return b.bitcast(e.broadcast(pair, VEC_I32), _WORDS)


def signed_byte(e: Emitter, quads: ir.Value, number: int) -> ir.Value:
    """One of four signed bytes in each of 16 lanes, as a 32-bit number."""
    b = e.builder
    return b.ashr(b.shl(quads, int_lanes(24 - 8 * number)), int_lanes(24))
