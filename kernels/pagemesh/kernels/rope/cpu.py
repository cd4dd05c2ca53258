"""Rotation as vector code: each head is read and written once, its norm included."""

from __future__ import annotations

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import per_isa
from pagemesh.kernels.jit.elements import (
    ELEMENT_TYPES,
    load_element,
    load_elements,
    store_element,
    store_elements,
)
from pagemesh.kernels.jit.emit import F32, LANES, VEC, Emitter
from pagemesh.kernels.jit.rows import RowKernel, Values
from pagemesh.kernels.rms_norm.cpu import inverse_root_mean_square
from pagemesh.kernels.rope.interface import check_heads


class CpuRotation:
    """A `Rotation` of CPU tensors."""

    def __init__(self, norm_weight: torch.Tensor | None, norm_eps: float) -> None:
        self._norm_eps = None if norm_weight is None else norm_eps
        self._norm_weight = None if norm_weight is None else norm_weight.contiguous()

    def __call__(self, heads: torch.Tensor, factors: torch.Tensor) -> None:
        """See `Rotation`."""
        check_heads(heads, factors, self._norm_weight)
        num_tokens, num_heads, head_dim = heads.shape
        kernel = _compile(num_heads, head_dim, self._norm_eps, heads.dtype)
        weight = 0 if self._norm_weight is None else self._norm_weight.data_ptr()
        addresses = (factors.data_ptr(), weight)
        kernel.run(
            num_tokens, num_heads * head_dim, (heads.data_ptr(), heads.stride(0), *addresses)
        )


@per_isa
def _compile(
    num_heads: int, head_dim: int, norm_eps: float | None, torch_dtype: torch.dtype
) -> RowKernel:
    dtype = str(torch_dtype).removeprefix("torch.")
    arguments = {"heads": ELEMENT_TYPES[dtype], "stride": None, "factors": F32, "weight": F32}

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        b = e.builder
        token = e.at(values["heads"], b.mul(row, values["stride"]))
        factors = e.at(values["factors"], b.mul(row, e.int64(head_dim)))
        with e.loop(e.int64(0), e.int64(num_heads)) as index:
            offset = b.mul(index, e.int64(head_dim))
            head = e.at(token, offset)
            scale = None
            if norm_eps is not None:
                scale = inverse_root_mean_square(e, head, head_dim, norm_eps, dtype)
            _turn(e, head, factors, e.at(values["weight"], offset), scale, head_dim, dtype)

    return RowKernel(arguments, emit_row)


def _turn(
    e: Emitter,
    head: ir.Value,
    factors: ir.Value,
    weight: ir.Value,
    scale: ir.Value | None,
    head_dim: int,
    dtype: str,
) -> None:
    """One head: whole vectors of 8 pairs, then pair by pair."""
    b = e.builder
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
        turned = (
            e.fma(pair[0], real, b.fneg(b.fmul(pair[1], imaginary))),
            e.fma(pair[1], real, b.fmul(pair[0], imaginary)),
        )
        for value, place in zip(turned, places, strict=True):
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
