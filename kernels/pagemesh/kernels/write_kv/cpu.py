"""Turning and storing as vector code: each token's keys and values go to two places, bit by bit as they are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import per_isa
from pagemesh.kernels.jit.elements import (
    ELEMENT_TYPES,
    copy_elements,
    load_element,
    load_elements,
    map_row,
    store_element,
    store_elements,
)
from pagemesh.kernels.jit.emit import F32, I1, I32, I64, LANES, VEC, VEC_I32, Emitter, int_lanes
from pagemesh.kernels.jit.parallel import RowKernel, Values
from pagemesh.kernels.kv_scales import INT8_SCALE_BYTES, MAX_INT8, KvScales
from pagemesh.kernels.rms_norm.cpu import inverse_root_mean_square
from pagemesh.kernels.write_kv.interface import Turn, check_write

_LEAST_NORMAL: Final = 2.0**-126


class CpuKvWriter:
    """`KvWriter` of CPU tensors."""

    def slot_mapping(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        """See `KvWriter`: the rows of key and value, int64 [T, 2]."""
        # Of all memory there is, the kernel would write where it is told to.
        if len(slots):
            lowest, highest = (int(slot) for slot in slots.aminmax())
            if not 0 <= lowest <= highest < num_slots:
                raise IndexError(f"slots {lowest} to {highest} are not all among {num_slots}")
        return torch.stack([slots, slots + num_slots], dim=1)

    def write(
        self,
        layer_kv: torch.Tensor,
        heads: torch.Tensor,
        slot_mapping: torch.Tensor,
        scales: KvScales | None = None,
        turn: Turn | None = None,
    ) -> None:
        check_write(layer_kv, heads, slot_mapping, scales, turn)
        num_kv_heads, head_dim = layer_kv.shape[3], heads.shape[2]
        num_heads = heads.shape[1] - 2 * num_kv_heads
        factors = weight = 0
        norm_eps = None
        if turn is not None:
            factors = turn.factors.data_ptr()
            if turn.norm_weight is not None:
                weight, norm_eps = turn.norm_weight.data_ptr(), turn.norm_eps
        dtype, stored = (str(each.dtype).removeprefix("torch.") for each in (heads, layer_kv))
        shape = _Shape(num_heads, num_kv_heads, head_dim, dtype, stored, turn is not None, norm_eps)
        memory = layer_kv.view(-1)
        _compile(shape).run(
            len(heads),
            heads.shape[1] * head_dim,
            (
                *(heads.data_ptr(), heads.stride(0), memory.data_ptr(), slot_mapping.data_ptr()),
                *(factors, weight),
                *((0, 0) if scales is None else (scale.data_ptr() for scale in scales)),
            ),
        )


class _Shape(NamedTuple):
    """What a kernel is compiled for."""

    num_heads: int
    """Of queries."""
    num_kv_heads: int
    head_dim: int
    dtype: str
    stored: str
    """Type of keys and values, as `dtype` is that of heads."""
    turns: bool
    norm_eps: float | None
    """None without a norm."""


@per_isa
def _compile(shape: _Shape) -> RowKernel:
    element, head_dim = ELEMENT_TYPES[shape.dtype], shape.head_dim
    stored = ELEMENT_TYPES[shape.stored]
    arguments = {"heads": element, "stride": None, "layer_kv": stored, "slot_mapping": I64}
    arguments |= {"factors": F32, "weight": F32, "key_scales": F32, "value_scales": F32}
    store = _STORES.get(shape.stored, _store_as_they_are)
    row = head_dim + (INT8_SCALE_BYTES if shape.stored == "int8" else 0)

    def emit_row(e: Emitter, values: Values, token: ir.Value) -> None:
        b = e.builder
        heads = e.at(values["heads"], b.mul(token, values["stride"]))
        if shape.turns:
            factors = e.at(values["factors"], b.mul(token, e.int64(head_dim)))
            num_turned = shape.num_heads + shape.num_kv_heads
            with e.loop(e.int64(0), e.int64(num_turned)) as index:
                offset = b.mul(index, e.int64(head_dim))
                _turn(e, shape, e.at(heads, offset), factors, e.at(values["weight"], offset))
        source = e.at(heads, e.int64(shape.num_heads * head_dim))
        for index in range(2):
            place = b.load(
                e.at(values["slot_mapping"], b.add(b.mul(token, e.int64(2)), e.int64(index)))
            )
            target = e.at(values["layer_kv"], b.mul(place, e.int64(shape.num_kv_heads * row)))
            own = e.at(source, e.int64(index * shape.num_kv_heads * head_dim))
            store(e, shape, own, target, values[("key_scales", "value_scales")[index]])

    return RowKernel(arguments, emit_row)


def _store_as_they_are(
    e: Emitter, shape: _Shape, source: ir.Value, target: ir.Value, scales: ir.Value
) -> None:
    """Of one token all heads' keys, or values."""
    copy_elements(e, source, target, shape.num_kv_heads * shape.head_dim)


def _store_fp8(
    e: Emitter, shape: _Shape, source: ir.Value, target: ir.Value, scales: ir.Value
) -> None:
    """Of one token all heads' keys, or values: their quotients by the heads' scales."""
    b = e.builder
    with e.loop(e.int64(0), e.int64(shape.num_kv_heads)) as head:
        scale = e.broadcast(b.load(e.at(scales, head)))
        begin = b.mul(head, e.int64(shape.head_dim))
        sources = [(e.at(source, begin), shape.dtype)]
        quotient = functools.partial(_quotient, b, scale)
        map_row(e, shape.head_dim, sources, e.at(target, begin), shape.stored, quotient)


def _quotient(b: ir.IRBuilder, scale: ir.Value, values: ir.Value) -> ir.Value:
    return b.fdiv(values, scale)


def _store_int8(
    e: Emitter, shape: _Shape, source: ir.Value, target: ir.Value, scales: ir.Value
) -> None:
    """Of one token all heads' keys, or values, each with a scale behind it; see `to_int8`."""
    b, head_dim = e.builder, shape.head_dim
    offsets = range(0, head_dim, LANES)
    masks = [
        None if head_dim - offset >= LANES else _first(head_dim - offset) for offset in offsets
    ]
    with e.loop(e.int64(0), e.int64(shape.num_kv_heads)) as head:
        own = e.at(source, b.mul(head, e.int64(head_dim)))
        row = e.at(target, b.mul(head, e.int64(head_dim + INT8_SCALE_BYTES)))
        vectors = [
            load_elements(e, e.at(own, e.int64(offset)), shape.dtype, mask)
            for offset, mask in zip(offsets, masks, strict=True)
        ]
        scale = b.fdiv(_greatest_size(e, vectors), e.splat(float(MAX_INT8)))
        is_tiny = b.fcmp_ordered("<", scale, e.splat(_LEAST_NORMAL))
        scale = b.select(is_tiny, e.splat(0.0), scale)
        for vector, offset, mask in zip(vectors, offsets, masks, strict=True):
            quotient = b.select(is_tiny, e.splat(0.0), b.fdiv(vector, scale))
            store_elements(e, quotient, e.at(row, e.int64(offset)), shape.stored, mask)
        place = b.bitcast(e.at(row, e.int64(head_dim)), F32.as_pointer())
        b.store(b.extract_element(scale, ir.Constant(I32, 0)), place).align = 1


def _greatest_size(e: Emitter, vectors: Sequence[ir.Value]) -> ir.Value:
    """The greatest absolute value of all lanes, in all lanes; not finite where one is not.

    By their bits, whose order is that of sizes, and has what is no number at its end.
    """
    b = e.builder

    def greater(x: ir.Value, y: ir.Value) -> ir.Value:
        return b.select(b.icmp_signed(">", x, y), x, y)

    sizes = [b.and_(b.bitcast(vector, VEC_I32), int_lanes(0x7FFFFFFF)) for vector in vectors]
    greatest = functools.reduce(greater, sizes)
    for distance in (8, 4, 2, 1):
        others = e.shuffle(greatest, greatest, [lane ^ distance for lane in range(LANES)])
        greatest = greater(greatest, others)
    return b.bitcast(greatest, VEC)


def _first(number: int) -> ir.Constant:
    """A mask of so many lanes."""
    lanes = [int(lane < number) for lane in range(LANES)]
    return ir.Constant(ir.VectorType(I1, LANES), lanes)


_STORES: Final = {"float8_e4m3fn": _store_fp8, "int8": _store_int8}
"""By the type of what is stored; others are stored as they are."""


def _turn(e: Emitter, shape: _Shape, head: ir.Value, factors: ir.Value, weight: ir.Value) -> None:
    """One head in place: whole vectors of 8 pairs, then pair by pair."""
    b = e.builder
    head_dim, dtype = shape.head_dim, shape.dtype
    scale = None
    if shape.norm_eps is not None:
        scale = inverse_root_mean_square(e, head, head_dim, shape.norm_eps, dtype)
    num_whole = head_dim // LANES * LANES
    with e.loop(e.int64(0), e.int64(num_whole), LANES) as index:
        values = load_elements(e, e.at(head, index), dtype)
        if scale is not None:
            values = b.fmul(b.fmul(values, e.broadcast(scale)), e.load(e.at(weight, index)))
        turned = _turn_vector(e, values, e.load(e.at(factors, index)))
        store_elements(e, turned, e.at(head, index), dtype)
    if num_whole == head_dim:
        return
    with e.loop(e.int64(num_whole), e.int64(head_dim), 2) as index:
        places = (index, b.add(index, e.int64(1)))
        pair = [load_element(e, e.at(head, place), dtype) for place in places]
        if scale is not None:
            pair = [
                b.fmul(b.fmul(value, scale), b.load(e.at(weight, place)))
                for value, place in zip(pair, places, strict=True)
            ]
        real, imaginary = (b.load(e.at(factors, place)) for place in places)
        pair = [
            e.fma(pair[0], real, b.fneg(b.fmul(pair[1], imaginary))),
            e.fma(pair[1], real, b.fmul(pair[0], imaginary)),
        ]
        for value, place in zip(pair, places, strict=True):
            store_element(e, value, e.at(head, place), dtype)


def _turn_vector(e: Emitter, values: ir.Value, factors: ir.Value) -> ir.Value:
    """8 complex products, real and imaginary parts side by side."""
    b = e.builder
    pairs = range(0, LANES, 2)
    reals = e.shuffle(factors, factors, [lane for pair in pairs for lane in (pair, pair)])
    imaginaries = e.shuffle(
        factors, factors, [lane for pair in pairs for lane in (pair + 1, pair + 1)]
    )
    swapped = e.shuffle(values, values, [lane for pair in pairs for lane in (pair + 1, pair)])
    signs = ir.Constant(VEC, [-1.0, 1.0] * (LANES // 2))
    return e.fma(values, reals, b.fmul(b.fmul(swapped, imaginaries), signs))
