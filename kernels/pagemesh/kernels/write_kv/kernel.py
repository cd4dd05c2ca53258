"""Storing keys and values in Triton: one program copies one token's keys or its values."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_kv_kernel(
    layer_kv,  # values lie value_offset elements behind keys: [slots, SIZE]
    value_offset,
    num_slots,
    keys_values,  # [T, 2, SIZE], tokens strided
    token_stride,
    slots,  # int64 [T]
    key_scales,  # float32 [SIZE / HEAD_DIM], or None as `value_scales`
    value_scales,
    HEAD_DIM: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store a token's keys, or its values, in its slot; nothing where there is no such slot."""
    token, half = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token)
    if (slot < 0) | (slot >= num_slots):
        return
    places = tl.arange(0, BLOCK)
    mask = places < SIZE
    source = keys_values + token * token_stride + half * SIZE
    stored = tl.load(source + places, mask=mask, other=0.0)
    if key_scales is not None:
        scales = key_scales
        if half == 1:
            scales = value_scales
        scale = tl.load(scales + places // HEAD_DIM, mask=mask, other=1.0)
        wide = tl.div_rn(stored.to(tl.float32), scale)
        # Of the comparisons with what is not a number none holds.
        wide = tl.where(wide > 448.0, 448.0, tl.where(wide < -448.0, -448.0, wide))
        stored = wide.to(layer_kv.dtype.element_ty)
    target = layer_kv + slot * SIZE
    if half == 1:
        target += value_offset
    tl.store(target + places, stored, mask=mask)
