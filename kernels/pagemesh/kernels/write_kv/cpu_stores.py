"""What becomes of a token's keys, or values, as they are stored: as they are, or in eight bits."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, NamedTuple

from llvmlite import ir

from pagemesh.kernels.jit.elements import copy_elements, load_elements, map_row, store_elements
from pagemesh.kernels.jit.emit import F32, I1, I32, LANES, VEC, VEC_I32, Emitter, int_lanes
from pagemesh.kernels.kv_scales import MAX_INT8

_LEAST_NORMAL: Final = 2.0**-126


class StoredHeads(NamedTuple):
    """Of one token all heads' keys, or values."""

    num_kv_heads: int
    head_dim: int
    dtype: str
    """As they come, by torch's name."""
    stored: str
    row_size: int
    """Elements of a head that are stored: its own, and the bytes of a scale."""

    @property
    def size(self) -> int:
        """Elements that are stored."""
        return self.num_kv_heads * self.row_size


def store_heads(
    e: Emitter, shape: StoredHeads, source: ir.Value, target: ir.Value, scales: ir.Value
) -> None:
    """From and to the addresses of their first elements; `scales` [kv heads] are read for FP8 alone."""
    match shape.stored:
        case "float8_e4m3fn":
            _store_fp8(e, shape, source, target, scales)
        case "int8":
            _store_int8(e, shape, source, target)
        case _:
            copy_elements(e, source, target, shape.size)


def _store_fp8(
    e: Emitter, shape: StoredHeads, source: ir.Value, target: ir.Value, scales: ir.Value
) -> None:
    """Their quotients by the heads' scales."""
    b = e.builder
    with e.loop(e.int64(0), e.int64(shape.num_kv_heads)) as head:
        scale = e.broadcast(b.load(e.at(scales, head)))
        begin = b.mul(head, e.int64(shape.head_dim))
        sources = [(e.at(source, begin), shape.dtype)]
        quotient = functools.partial(_quotient, b, scale)
        map_row(e, shape.head_dim, sources, e.at(target, begin), shape.stored, quotient)


def _quotient(b: ir.IRBuilder, scale: ir.Value, values: ir.Value) -> ir.Value:
    return b.fdiv(values, scale)


def _store_int8(e: Emitter, shape: StoredHeads, source: ir.Value, target: ir.Value) -> None:
    """Each with a scale behind it; see `to_int8`."""
    b, head_dim = e.builder, shape.head_dim
    offsets = range(0, head_dim, LANES)
    masks = [
        None if head_dim - offset >= LANES else _first(head_dim - offset) for offset in offsets
    ]
    with e.loop(e.int64(0), e.int64(shape.num_kv_heads)) as head:
        own = e.at(source, b.mul(head, e.int64(head_dim)))
        row = e.at(target, b.mul(head, e.int64(shape.row_size)))
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
