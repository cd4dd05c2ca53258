"""Rotation in Triton: one program turns some heads of a token, which it holds in registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rope_kernel(
    heads,
    stride,
    factors,
    norm_weight,
    eps,
    num_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    """`heads` [T, num_heads, HEAD_DIM], tokens `stride` apart; `factors` float32 [T, HEAD_DIM];
    `norm_weight` [num_heads, HEAD_DIM] or None. HALF_BLOCK is at least half of HEAD_DIM."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    column = tl.arange(0, 2 * HALF_BLOCK)
    mask = (head < num_heads)[:, None] & (column < HEAD_DIM)[None, :]
    offsets = head[:, None] * HEAD_DIM + column[None, :]
    places = heads + token * stride + offsets
    values = tl.load(places, mask=mask, other=0.0).to(tl.float32)
    if norm_weight is not None:
        scale = tl.rsqrt(tl.sum(values * values, axis=1) / HEAD_DIM + eps)
        values = values * scale[:, None] * tl.load(norm_weight + offsets, mask=mask, other=0.0)
    real, imaginary = tl.split(tl.reshape(values, (BLOCK_HEADS, HALF_BLOCK, 2)))
    turns = tl.load(factors + token * HEAD_DIM + column, mask=column < HEAD_DIM, other=0.0)
    cosine, sine = tl.split(tl.reshape(turns, (HALF_BLOCK, 2)))
    turned = tl.join(
        real * cosine[None, :] - imaginary * sine[None, :],
        real * sine[None, :] + imaginary * cosine[None, :],
    )
    turned = tl.reshape(turned, (BLOCK_HEADS, 2 * HALF_BLOCK))
    tl.store(places, turned.to(heads.dtype.element_ty), mask=mask)
