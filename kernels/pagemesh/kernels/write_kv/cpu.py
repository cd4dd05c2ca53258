"""Turning and storing as vector code: each token's keys and values go to two places, as they are or in eight bits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import Recipe, per_isa
from pagemesh.kernels.jit.elements import (
    ELEMENT_TYPES,
    load_element,
    load_elements,
    store_element,
    store_elements,
)
from pagemesh.kernels.jit.emit import F32, I64, LANES, VEC, Emitter
from pagemesh.kernels.jit.parallel import RowKernel, Values
from pagemesh.kernels.kv_scales import KvScales
from pagemesh.kernels.rms_norm.cpu import inverse_root_mean_square
from pagemesh.kernels.write_kv.cpu_stores import StoredHeads, store_heads
from pagemesh.kernels.write_kv.interface import Turn, check_write


class CpuKvWriter:
    """`KvWriter` of CPU tensors."""

    def slot_mapping(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        """See `KvWriter`: the slots as they are."""
        # Of all memory there is, the kernel would write where it is told to.
        numbers = slots.tolist()
        if numbers and not 0 <= min(numbers) <= max(numbers) < num_slots:
            wrong = f"slots {min(numbers)} to {max(numbers)}"
            raise IndexError(f"{wrong} are not all among {num_slots}")
        return slots.contiguous()

    def write(
        self,
        layer_kv: torch.Tensor,
        heads: torch.Tensor,
        slot_mapping: torch.Tensor,
        scales: KvScales | None = None,
        turn: Turn | None = None,
    ) -> None:
        check_write(layer_kv, heads, slot_mapping, scales, turn)
        num_kv_heads, row_size = layer_kv.shape[3:]
        head_dim = heads.shape[2]
        num_heads = heads.shape[1] - 2 * num_kv_heads
        factors = weight = 0
        norm_eps = None
        if turn is not None:
            factors = turn.factors.data_ptr()
            if turn.norm_weight is not None:
                weight, norm_eps = turn.norm_weight.data_ptr(), turn.norm_eps
        dtype, stored = (str(each.dtype).removeprefix("torch.") for each in (heads, layer_kv))
        kept = StoredHeads(num_kv_heads, head_dim, dtype, stored, row_size)
        shape = _Shape(num_heads, kept, turn is not None, norm_eps)
        arguments = [heads.data_ptr(), heads.stride(0), layer_kv.view(-1).data_ptr()]
        num_slots = layer_kv.shape[1] * layer_kv.shape[2]
        arguments += [slot_mapping.data_ptr(), num_slots, factors, weight]
        arguments += [0, 0] if scales is None else [scale.data_ptr() for scale in scales]
        _compile(shape).run(len(heads), heads.shape[1] * head_dim, arguments)


class _Shape(NamedTuple):
    """What a kernel is compiled for."""

    num_heads: int
    """Of queries."""
    kept: StoredHeads
    """Of keys, as of values."""
    turns: bool
    norm_eps: float | None
    """None without a norm."""


@per_isa
def _compile(recipe: Recipe, shape: _Shape) -> RowKernel:
    kept, head_dim = shape.kept, shape.kept.head_dim
    element, stored = ELEMENT_TYPES[kept.dtype], ELEMENT_TYPES[kept.stored]
    arguments = {"heads": element, "stride": None, "layer_kv": stored, "slot_mapping": I64}
    arguments |= {
        "num_slots": None,
        "factors": F32,
        "weight": F32,
        "key_scales": F32,
        "value_scales": F32,
    }

    def emit_row(e: Emitter, values: Values, token: ir.Value) -> None:
        b = e.builder
        heads = e.at(values["heads"], b.mul(token, values["stride"]))
        if shape.turns:
            factors = e.at(values["factors"], b.mul(token, e.int64(head_dim)))
            num_turned = shape.num_heads + kept.num_kv_heads
            with e.loop(e.int64(0), e.int64(num_turned)) as index:
                offset = b.mul(index, e.int64(head_dim))
                _turn(e, shape, e.at(heads, offset), factors, e.at(values["weight"], offset))
        source = e.at(heads, e.int64(shape.num_heads * head_dim))
        slot = b.load(e.at(values["slot_mapping"], token))
        for index, place in enumerate((slot, b.add(slot, values["num_slots"]))):
            target = e.at(values["layer_kv"], b.mul(place, e.int64(kept.size)))
            own = e.at(source, e.int64(index * kept.num_kv_heads * head_dim))
            scales = values["value_scales" if index else "key_scales"]
            store_heads(e, kept, own, target, scales)

    return RowKernel(recipe, arguments, emit_row)


def _turn(e: Emitter, shape: _Shape, head: ir.Value, factors: ir.Value, weight: ir.Value) -> None:
    """One head in place: whole vectors of 8 pairs, then pair by pair."""
    b = e.builder
    head_dim, dtype = shape.kept.head_dim, shape.kept.dtype
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
