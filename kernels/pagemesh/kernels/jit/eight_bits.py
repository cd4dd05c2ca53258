"""Between floats and numbers of eight bits: FP8 (e4m3fn) and int8, one at a time or as vectors of any length."""

from __future__ import annotations

from typing import Final

from llvmlite import ir

from pagemesh.kernels.jit.emit import F32, I8, I16, I32, Emitter

_MAX_FP8: Final = 448.0
_FP8_NAN: Final = 0x7F
_LEAST_FP8: Final = 2.0**-6
"""With a leading one."""


def widen_fp8(e: Emitter, raw: ir.Value) -> ir.Value:
    """Exactly. Moved by seven bits they are numbers in float16, 2^-8 of what they stand for: so that what has no
    leading one takes no longer."""
    b = e.builder
    wide = b.zext(raw, _like(raw, I16))
    magnitude = b.and_(wide, _splat(raw, I16, 0x7F))
    moved = b.shl(magnitude, _splat(raw, I16, 7))
    # Of the only one that is no number the exponent is made float16's greatest, by the bit that it carries into.
    carried = b.and_(b.add(moved, _splat(raw, I16, 1 << 7)), _splat(raw, I16, 1 << 14))
    sign = b.and_(b.shl(wide, _splat(raw, I16, 8)), _splat(raw, I16, 1 << 15))
    half = b.bitcast(b.or_(b.or_(moved, carried), sign), _like(raw, ir.HalfType()))
    return b.fmul(b.fpext(half, _like(raw, F32)), _splat(raw, F32, 256.0))


def narrow_fp8(e: Emitter, value: ir.Value) -> ir.Value:
    """To nearest, ties to even, and at most ±448; what is not a number stays none."""
    b = e.builder
    raw = b.bitcast(value, _like(value, I32))
    sign = b.and_(b.lshr(raw, _splat(value, I32, 24)), _splat(value, I32, 0x80))
    bits = b.and_(raw, _splat(value, I32, 0x7FFFFFFF))
    size = b.bitcast(bits, _like(value, F32))
    is_large = b.fcmp_ordered(">", size, _splat(value, F32, _MAX_FP8))
    size = b.select(is_large, _splat(value, F32, _MAX_FP8), size)
    bits = b.bitcast(size, _like(value, I32))
    is_odd = b.and_(b.lshr(bits, _splat(value, I32, 20)), _splat(value, I32, 1))
    rounded = b.add(b.add(bits, _splat(value, I32, 0x7FFFF)), is_odd)
    # The exponent's bias is 7 instead of 127.
    moved = b.lshr(b.sub(rounded, _splat(value, I32, 120 << 23)), _splat(value, I32, 20))
    # Below, numbers are multiples of 2^-9: so are the last bits of floats at 2^14.
    small = b.bitcast(b.fadd(size, _splat(value, F32, 2.0**14)), _like(value, I32))
    small = b.sub(small, b.bitcast(_splat(value, F32, 2.0**14), _like(value, I32)))
    is_small = b.fcmp_ordered("<", size, _splat(value, F32, _LEAST_FP8))
    magnitude = b.select(is_small, small, moved)
    is_nan = b.fcmp_unordered("uno", value, value)
    magnitude = b.select(is_nan, _splat(value, I32, _FP8_NAN), magnitude)
    return b.trunc(b.or_(sign, magnitude), _like(value, I8))


def widen_int8(e: Emitter, raw: ir.Value) -> ir.Value:
    """Exactly."""
    b = e.builder
    return b.sitofp(b.sext(raw, _like(raw, I32)), _like(raw, F32))


def narrow_int8(e: Emitter, value: ir.Value) -> ir.Value:
    """To nearest, ties to even, of floats in reach of int8; what is not a number becomes 0."""
    b = e.builder
    is_number = b.fcmp_ordered("ord", value, value)
    value = b.select(is_number, value, _splat(value, F32, 0.0))
    name = "llvm.rint.f32" if value.type == F32 else f"llvm.rint.v{value.type.count}f32"
    rounded = e.intrinsic(name, value.type, value)
    return b.trunc(b.fptosi(rounded, _like(value, I32)), _like(value, I8))


def _like(value: ir.Value, kind: ir.Type) -> ir.Type:
    """One of this kind, or as many of them as the value has."""
    shape = value.type
    return ir.VectorType(kind, shape.count) if isinstance(shape, ir.VectorType) else kind


def _splat(value: ir.Value, kind: ir.Type, number: float) -> ir.Constant:
    shape = _like(value, kind)
    return ir.Constant(shape, [number] * shape.count if shape != kind else number)
