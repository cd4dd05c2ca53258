"""Rows as whole numbers of 8 bits, as `ChannelInt8` defines them, and its weights in the order of panels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

import torch
from llvmlite import ir
from torch.nn import functional

from pagemesh.kernels.jit.byte_dots import has_quad_dots
from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa, per_isa
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
from pagemesh.kernels.jit.tile_registers import multiplies_int8
from pagemesh.kernels.jit.vector_math import maximum, minimum
from pagemesh.kernels.linear.packed import ChannelInt8
from pagemesh.kernels.linear.panel_sums import COLUMNS
from pagemesh.kernels.packed_weights import place_packed

Int8Order = Literal["tiles", "quads", "words"]
"""By what multiplies them. For quads, bytes of rows are 128 more than the codes; for words, codes of rows are words."""

STEP_INPUTS: Final[Mapping[Int8Order, int]] = {"tiles": 64, "quads": 4, "words": 4}
"""Inputs are filled up to a multiple of these."""

_LINE_BYTES: Final = 64
_MOST_CODE: Final = 127
_LEAST_BITS: Final = 27 << 23
"""2^-100 as a float32: rows with nothing as large are zeros."""
_INFINITE_BITS: Final = 0x7F800000
_ROUNDING: Final = 1.5 * 2.0**23
"""A small float added to it is rounded to a whole number, which its last bits are."""
_EXCESS: Final = 128


def int8_order() -> Int8Order:
    """The fastest of the class's processors that this one has."""
    if current_isa() == CpuIsa.AMX and multiplies_int8():
        return "tiles"
    return "quads" if has_quad_dots() else "words"


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
    size: int, width: int, torch_dtype: torch.dtype, order: Int8Order, *, is_static: bool
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
        excess = _EXCESS if order == "quads" else 0

        def write(index: ir.Value, vector: ir.Value) -> None:
            number = b.fmul(vector, factor)
            if is_static:
                number = minimum(e, maximum(e, number, e.splat(-128.0)), e.splat(127.0))
            rounded = b.bitcast(b.fadd(number, e.splat(_ROUNDING + excess)), VEC_I32)
            e.store(b.trunc(rounded, kind), e.at(target, index), align=2)

        elements.each(write)

    return RowKernel(arguments, emit_row)


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


class Int8Panels(NamedTuple):
    """A weight as kernels read it, its rows filling panels."""

    codes: torch.Tensor
    """int8 [panels, steps, 32 · inputs of a step], by its order."""

    scales: torch.Tensor
    """float32 [panels · 32]."""

    starts: torch.Tensor
    """int32 [panels · 32]: what sums begin with."""

    input_scale: torch.Tensor | None
    """float32 [1]."""


def pack_int8(weight: ChannelInt8, order: Int8Order) -> Int8Panels:
    """Of a weight [panels · 32, in]."""
    num_rows, num_inputs = weight.shape
    assert num_inputs <= weight.most_inputs, "formats refuse longer rows"
    step = STEP_INPUTS[order]
    codes = functional.pad(weight.codes, (0, -num_inputs % step))
    num_steps = codes.shape[1] // step
    if order == "quads":
        pieces = codes.view(-1, COLUMNS, num_steps, step).transpose(1, 2)
    else:
        # By halves of the columns, inputs that are added at once side by side.
        together = 4 if order == "tiles" else 2
        halves = codes.view(-1, 2, LANES, num_steps, step // together, together)
        pieces = halves.permute(0, 3, 1, 4, 2, 5)
    panels = pieces.reshape(num_rows // COLUMNS, num_steps, COLUMNS * step)
    starts = torch.zeros(num_rows, dtype=torch.int32)
    if order == "quads":
        starts = weight.codes.sum(1, dtype=torch.int32) * -_EXCESS
    scale = weight.input_scale
    return Int8Panels(
        place_packed(panels.contiguous()),
        weight.scales.flatten(),
        starts,
        None if scale is None else scale.flatten(),
    )
