"""Rows as whole numbers of 8 bits, as `ChannelInt8` defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import Recipe, per_isa
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, load_elements
from pagemesh.kernels.jit.emit import (
    F32,
    I1,
    I8,
    I16,
    I32,
    LANES,
    VEC,
    VEC_I32,
    Emitter,
    fold,
    int_lanes,
)
from pagemesh.kernels.jit.parallel import RowKernel, Values
from pagemesh.kernels.jit.vector_math import maximum, minimum
from pagemesh.kernels.linear.panel_packing import ROW_EXCESS, Int8Order

_LINE_BYTES: Final = 64
_MOST_CODE: Final = 127
_LEAST_BITS: Final = 27 << 23
"""2^-100 as a float32: rows with nothing as large are zeros."""
_INFINITE_BITS: Final = 0x7F800000
_ROUNDING: Final = 1.5 * 2.0**23
"""A small float added to it is rounded to a whole number, which its last bits are."""


class RowCodes(NamedTuple):
    """Rows as they are multiplied."""

    codes: torch.Tensor
    """int8 [T, n], n at least the inputs of whole steps; or int16, for words. Behind a row's inputs it is anything."""

    scales: torch.Tensor
    """float32 [T]."""


def quantise_rows(
    rows: torch.Tensor, order: Int8Order, input_scale: torch.Tensor | None
) -> RowCodes:
    """Of rows [T, n], a row's elements side by side; `input_scale` is float32 [1], in place of each row's own."""
    num_rows, size = rows.shape
    width = -(-size // _LINE_BYTES) * _LINE_BYTES
    dtype = torch.int16 if order == "words" else torch.int8
    codes = torch.empty(num_rows, width, dtype=dtype)
    scales = torch.empty(num_rows, dtype=torch.float32)
    kernel = _compile(size, width, rows.dtype, order, is_static=input_scale is not None)
    tensors = (codes, scales) if input_scale is None else (codes, scales, input_scale)
    addresses = [tensor.data_ptr() for tensor in tensors]
    kernel.run(num_rows, size, (rows.data_ptr(), rows.stride(0), *addresses))
    return RowCodes(codes, scales)


@per_isa
def _compile(
    recipe: Recipe,
    size: int,
    width: int,
    torch_dtype: torch.dtype,
    order: Int8Order,
    *,
    is_static: bool,
) -> RowKernel:
    dtype = str(torch_dtype).removeprefix("torch.")
    code = I16 if order == "words" else I8
    arguments = {"rows": ELEMENT_TYPES[dtype], "stride": None, "codes": code, "scales": F32}
    if is_static:
        arguments["input_scale"] = F32

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        b = e.builder
        source = e.at(values["rows"], b.mul(row, values["stride"]))
        target = e.at(values["codes"], b.mul(row, e.int64(width)))
        elements = _Row(e, source, size, dtype)
        given = e.broadcast(b.load(values["input_scale"])) if is_static else None
        scale, factor = _scale(e, elements.largest_bits(), given)
        b.store(b.extract_element(scale, ir.Constant(I32, 0)), e.at(values["scales"], row))
        kind = ir.VectorType(code, LANES)
        excess = ROW_EXCESS if order == "quads" else 0

        def write(index: ir.Value, vector: ir.Value) -> None:
            number = b.fmul(vector, factor)
            if is_static:
                number = minimum(e, maximum(e, number, e.splat(-128.0)), e.splat(127.0))
            rounded = b.bitcast(b.fadd(number, e.splat(_ROUNDING + excess)), VEC_I32)
            e.store(b.trunc(rounded, kind), e.at(target, index), align=2)

        elements.each(write)

    return RowKernel(recipe, arguments, emit_row)


class _Row:
    """A row's elements as vectors of floats, the last one with zeros behind them."""

    def __init__(self, e: Emitter, address: ir.Value, size: int, dtype: str) -> None:
        self._e = e
        self._address = address
        self._dtype = dtype
        self._num_whole, self._num_left = divmod(size, LANES)

    def largest_bits(self) -> ir.Value:
        """Of the element farthest from 0, in all lanes; of NaN and infinities at least those of the latter."""
        e, b = self._e, self._e.builder

        def grow(vector: ir.Value, largest: ir.Value) -> ir.Value:
            bits = b.and_(b.bitcast(vector, VEC_I32), int_lanes(0x7FFFFFFF))
            return _greater(e, bits, largest)

        (largest,) = fold(
            e,
            e.int64(self._num_whole),
            [int_lanes(0)],
            lambda index, before: [grow(self._whole(index), before[0])],
        )
        if self._num_left:
            largest = grow(self._last(), largest)
        for distance in (8, 4, 2, 1):
            lanes = [lane ^ distance for lane in range(LANES)]
            largest = _greater(e, largest, e.shuffle(largest, largest, lanes))
        return largest

    def each(self, work: Callable[[ir.Value, ir.Value], None]) -> None:
        """work(index of the first element, vector)."""
        e, b = self._e, self._e.builder
        with e.loop(e.int64(0), e.int64(self._num_whole)) as number:
            work(b.mul(number, e.int64(LANES)), self._whole(number))
        if self._num_left:
            work(e.int64(self._num_whole * LANES), self._last())

    def _whole(self, number: ir.Value) -> ir.Value:
        place = self._e.builder.mul(number, self._e.int64(LANES))
        return load_elements(self._e, self._e.at(self._address, place), self._dtype)

    def _last(self) -> ir.Value:
        e = self._e
        exists = [lane < self._num_left for lane in range(LANES)]
        mask = ir.Constant(ir.VectorType(I1, LANES), exists)
        place = e.at(self._address, e.int64(self._num_whole * LANES))
        return load_elements(e, place, self._dtype, mask)


def _greater(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    b = e.builder
    return b.select(b.icmp_signed(">", x, y), x, y)


def _scale(e: Emitter, largest_bits: ir.Value, given: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """A row's scale, and what its elements are multiplied with."""
    b = e.builder
    if given is not None:
        scale, factor = given, b.fdiv(e.splat(1.0), given)
    else:
        largest, most = b.bitcast(largest_bits, VEC), e.splat(float(_MOST_CODE))
        is_zero = b.icmp_signed("<", largest_bits, int_lanes(_LEAST_BITS))
        scale = b.select(is_zero, e.splat(0.0), b.fdiv(largest, most))
        factor = b.select(is_zero, e.splat(0.0), b.fdiv(most, largest))
    is_finite = b.icmp_signed("<", largest_bits, int_lanes(_INFINITE_BITS))
    return b.select(is_finite, scale, e.splat(float("nan"))), factor
