"""Between a tensor's elements and floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from pagemesh.kernels.jit.eight_bits import narrow_fp8, narrow_int8, widen_fp8, widen_int8
from pagemesh.kernels.jit.emit import F32, I8, I16, I32, LANES, Emitter

ELEMENT_TYPES = {
    "float32": F32,
    "float16": ir.HalfType(),
    "bfloat16": I16,
    "float8_e4m3fn": I8,
    "int8": I8,
}
"""How the elements of a tensor lie in memory, by torch's names."""

_SUFFIXES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "i16",
    "float8_e4m3fn": "i8",
    "int8": "i8",
}


def load_elements(
    e: Emitter,
    address: ir.Value,
    dtype: str,
    mask: ir.Value | None = None,
) -> ir.Value:
    """16 elements of a tensor as floats; zeros, without reading them, where there is a mask of 0."""
    return _widen(e, load_raw(e, address, dtype, mask), dtype, LANES)


def load_raw(
    e: Emitter,
    address: ir.Value,
    dtype: str,
    mask: ir.Value | None = None,
    lanes: int = LANES,
) -> ir.Value:
    """16 elements of a tensor, or more, as they are; zeros where there is a mask of 0."""
    builder = e.builder
    vector = ir.VectorType(ELEMENT_TYPES[dtype], lanes)
    address = builder.bitcast(address, vector.as_pointer())
    align = _alignment(vector)
    if mask is not None:
        nothing = ir.Constant(vector, None)
        name = f"llvm.masked.load.v{lanes}{_SUFFIXES[dtype]}.p0"
        return e.intrinsic(name, vector, address, ir.Constant(I32, align), mask, nothing)
    raw = builder.load(address)
    raw.align = align
    return raw


def load_element(e: Emitter, address: ir.Value, dtype: str) -> ir.Value:
    """One element of a tensor as a float."""
    return _widen(e, e.builder.load(address), dtype, 1)


def store_elements(
    e: Emitter, vector: ir.Value, address: ir.Value, dtype: str, mask: ir.Value | None = None
) -> None:
    """Round 16 floats to a tensor's type and write them, or those that a mask has 1 for."""
    narrow = _narrow(e, vector, dtype, LANES)
    align = _alignment(narrow.type)
    if mask is None:
        e.store(narrow, address, align)
        return
    address = e.builder.bitcast(address, narrow.type.as_pointer())
    name = f"llvm.masked.store.v{LANES}{_SUFFIXES[dtype]}.p0"
    e.intrinsic(name, ir.VoidType(), narrow, address, ir.Constant(I32, align), mask)


def store_element(e: Emitter, value: ir.Value, address: ir.Value, dtype: str) -> None:
    """Round one float to a tensor's type and write it."""
    e.builder.store(_narrow(e, value, dtype, 1), address)


def _widen(e: Emitter, raw: ir.Value, dtype: str, lanes: int) -> ir.Value:
    builder = e.builder
    if dtype == "float32":
        return raw
    if dtype == "float16":
        return builder.fpext(raw, _shaped(F32, lanes))
    if dtype == "float8_e4m3fn":
        return widen_fp8(e, raw)
    if dtype == "int8":
        return widen_int8(e, raw)
    bits = builder.zext(raw, _shaped(I32, lanes))
    return builder.bitcast(builder.shl(bits, _constant(16, lanes)), _shaped(F32, lanes))


def _narrow(e: Emitter, value: ir.Value, dtype: str, lanes: int) -> ir.Value:
    """Round to nearest, ties to even."""
    builder = e.builder
    if dtype == "float32":
        return value
    if dtype == "float16":
        return builder.fptrunc(value, _shaped(ir.HalfType(), lanes))
    if dtype == "float8_e4m3fn":
        return narrow_fp8(e, value)
    if dtype == "int8":
        return narrow_int8(e, value)
    raw = builder.bitcast(value, _shaped(I32, lanes))
    high = builder.lshr(raw, _constant(16, lanes))
    is_odd = builder.and_(high, _constant(1, lanes))
    rounded = builder.add(builder.add(raw, _constant(0x7FFF, lanes)), is_odd)
    is_nan = builder.fcmp_unordered("uno", value, value)
    rounded = builder.select(is_nan, _constant(0x7FC00000, lanes), rounded)
    return builder.trunc(builder.lshr(rounded, _constant(16, lanes)), _shaped(I16, lanes))


def _alignment(vector: ir.VectorType) -> int:
    """Of a tensor's elements, wherever these begin."""
    return 1 if vector.element == I8 else 2


def _shaped(kind: ir.Type, lanes: int) -> ir.Type:
    return kind if lanes == 1 else ir.VectorType(kind, lanes)


def _constant(number: int, lanes: int) -> ir.Constant:
    return ir.Constant(_shaped(I32, lanes), number if lanes == 1 else [number] * lanes)


def copy_elements(e: Emitter, source: ir.Value, target: ir.Value, size: int) -> None:
    """target[i] = source[i], for i below `size`: all bits as they are."""
    b = e.builder
    vector = ir.VectorType(source.type.pointee, LANES)
    num_whole = size // LANES * LANES
    with e.loop(e.int64(0), e.int64(num_whole), LANES) as index:
        loaded = b.load(b.bitcast(e.at(source, index), vector.as_pointer()))
        loaded.align = 2
        e.store(loaded, e.at(target, index), align=2)
    if num_whole < size:
        with e.loop(e.int64(num_whole), e.int64(size)) as index:
            b.store(b.load(e.at(source, index)), e.at(target, index))


def map_row(
    e: Emitter,
    size: int,
    sources: Sequence[tuple[ir.Value, str]],
    target: ir.Value,
    dtype: str,
    function: Callable[..., ir.Value],
) -> None:
    """target[i] = function(sources[0][i], sources[1][i], ...) for vectors; sources are (address, type)."""
    b = e.builder
    num_whole = size // LANES * LANES
    with e.loop(e.int64(0), e.int64(num_whole), LANES) as index:
        vectors = [load_elements(e, e.at(source, index), kind) for source, kind in sources]
        store_elements(e, function(*vectors), e.at(target, index), dtype)
    if num_whole < size:
        with e.loop(e.int64(num_whole), e.int64(size)) as index:
            vectors = [
                e.broadcast(load_element(e, e.at(source, index), kind)) for source, kind in sources
            ]
            value = b.extract_element(function(*vectors), ir.Constant(I32, 0))
            store_element(e, value, e.at(target, index), dtype)
