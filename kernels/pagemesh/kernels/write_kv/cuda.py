"""Turning and storing on CUDA devices: one program has some heads of one token, each of which is read once, its norm included."""

from __future__ import annotations

import functools
from typing import Final

import torch
import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier
from pagemesh.kernels.kv_scales import KvScales
from pagemesh.kernels.launch import BoundKernel, cdiv, next_power_of_2
from pagemesh.kernels.write_kv.interface import Turn, check_write

_BLOCK: Final = 1024
"""Values of a program, about: 8 for each thread."""


class CudaKvWriter:
    """`KvWriter` of CUDA tensors; it can be captured in a CUDA graph."""

    def slot_mapping(self, slots: torch.Tensor, num_slots: int) -> torch.Tensor:
        """See `KvWriter`: the slots themselves, so that a captured step reads them where they are."""
        return slots

    def write(
        self,
        layer_kv: torch.Tensor,
        heads: torch.Tensor,
        slot_mapping: torch.Tensor,
        scales: KvScales | None = None,
        turn: Turn | None = None,
    ) -> None:
        check_write(layer_kv, heads, slot_mapping, scales, turn)
        if layer_kv.dtype == torch.int8:
            raise ValueError("keys and values in torch.int8 are for CPUs")
        if not layer_kv[0].is_contiguous() or slot_mapping.dtype != torch.int64:
            raise ValueError(
                f"cannot store in {list(layer_kv.shape)} with strides {list(layer_kv.stride())}"
                f" at {slot_mapping.dtype} slots: a layer lies densely, and slots are torch.int64"
            )
        num_kv_heads, head_dim = layer_kv.shape[3:]
        # All heads are turned but those of values; where none are, keys are stored and queries left alone.
        num_first = num_kv_heads if turn is None else heads.shape[1] - num_kv_heads
        block = next_power_of_2(head_dim)
        block_heads = min(next_power_of_2(num_first), max(_BLOCK // block, 1))
        num_programs = cdiv(num_first, block_heads) + cdiv(num_kv_heads, block_heads)
        arguments = {
            "heads": heads,
            "stride": heads.stride(0),
            "layer_kv": layer_kv,
            "value_offset": layer_kv.stride(0),
            "num_slots": layer_kv.shape[1] * layer_kv.shape[2],
            "slots": slot_mapping,
        }
        if scales is not None:
            arguments |= {"key_scales": scales.keys, "value_scales": scales.values}
        if turn is not None:
            arguments["factors"] = torch.view_as_real(turn.factors)
            if turn.norm_weight is not None:
                arguments |= {"norm_weight": turn.norm_weight, "eps": turn.norm_eps}
        kernel = _bind(
            heads.shape[1] - 2 * num_kv_heads, num_kv_heads, head_dim, block_heads, *arguments
        )
        kernel.start((heads.shape[0], num_programs), arguments)


@functools.cache
def _bind(
    num_heads: int, num_kv_heads: int, head_dim: int, block_heads: int, *given: str
) -> BoundKernel:
    """The kernel, where all else that it could be given is not there."""
    absent = {
        "key_scales": None,
        "value_scales": None,
        "factors": None,
        "norm_weight": None,
        "eps": 0.0,
    }
    return BoundKernel(
        write_kv_kernel,
        {
            **{name: value for name, value in absent.items() if name not in given},
            "NUM_HEADS": num_heads,
            "NUM_KV_HEADS": num_kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK_HEADS": block_heads,
            "BLOCK": next_power_of_2(head_dim),
        },
        overlaps=True,
    )


@triton.jit
def turn_heads(values, weights, turns, eps, HEAD_DIM: tl.constexpr):
    """Float32 [heads, at least HEAD_DIM], normed if there are weights, times the complex numbers `turns`."""
    NUM_HEADS: tl.constexpr = values.shape[0]
    NUM_PAIRS: tl.constexpr = values.shape[1] // 2
    # In front of the sum: a compiler puts off what is not needed yet, and loads of it too.
    cosine, sine = tl.split(tl.reshape(turns, (NUM_PAIRS, 2)))
    if weights is not None:
        scale = tl.rsqrt(tl.sum(values * values, axis=1) / HEAD_DIM + eps)
        values = values * scale[:, None] * weights
    real, imaginary = tl.split(tl.reshape(values, (NUM_HEADS, NUM_PAIRS, 2)))
    turned = tl.join(
        real * cosine[None, :] - imaginary * sine[None, :],
        real * sine[None, :] + imaginary * cosine[None, :],
    )
    return tl.reshape(turned, (NUM_HEADS, 2 * NUM_PAIRS))


@triton.jit
def write_kv_kernel(
    heads,  # [T, NUM_HEADS + 2 * NUM_KV_HEADS, HEAD_DIM], tokens strided
    stride,
    layer_kv,  # values lie value_offset elements behind keys: [slots, NUM_KV_HEADS, HEAD_DIM]
    value_offset,
    num_slots,
    slots,  # int64 [T]
    key_scales,  # float32 [NUM_KV_HEADS], or None as `value_scales`
    value_scales,
    factors,  # float32 [T, HEAD_DIM], or None where nothing is turned
    norm_weight,  # float32 [NUM_HEADS + NUM_KV_HEADS, HEAD_DIM], or None
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Turn a token's queries and keys in place, and store keys and values in its slot, if there is such a slot.

    The first programs have queries and keys, or keys alone where nothing is turned; the others have values.
    BLOCK is at least HEAD_DIM.
    """
    FIRST_VALUE: tl.constexpr = NUM_HEADS + NUM_KV_HEADS
    FIRST: tl.constexpr = NUM_HEADS if factors is None else 0
    NUM_FIRST: tl.constexpr = (FIRST_VALUE - FIRST + BLOCK_HEADS - 1) // BLOCK_HEADS
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, end, first_stored = FIRST + block * BLOCK_HEADS, FIRST_VALUE, NUM_HEADS
    has_values = block >= NUM_FIRST
    if has_values:
        begin = FIRST_VALUE + (block - NUM_FIRST) * BLOCK_HEADS
        end, first_stored = FIRST_VALUE + NUM_KV_HEADS, FIRST_VALUE
    head = begin + tl.arange(0, BLOCK_HEADS)
    column = tl.arange(0, BLOCK)
    mask = (head < end)[:, None] & (column < HEAD_DIM)[None, :]
    offsets = head[:, None] * HEAD_DIM + column[None, :]
    weights = None
    if norm_weight is not None:
        is_normed = mask & (head < FIRST_VALUE)[:, None]
        weights = tl.load(norm_weight + offsets, mask=is_normed, other=0.0)
    wait_for_earlier(EARLY)
    slot = tl.load(slots + token)
    places = heads + token * stride + offsets
    stored = tl.load(places, mask=mask, other=0.0)
    if factors is not None and not has_values:
        turns = tl.load(factors + token * HEAD_DIM + column, mask=column < HEAD_DIM, other=0.0)
        turned = turn_heads(stored.to(tl.float32), weights, turns, eps, HEAD_DIM)
        stored = turned.to(heads.dtype.element_ty)
        tl.store(places, stored, mask=mask)
    target = layer_kv + slot * (NUM_KV_HEADS * HEAD_DIM)
    scales = key_scales
    if has_values:
        target += value_offset
        scales = value_scales
    kv_head = head - first_stored
    mask = mask & ((kv_head >= 0) & (slot >= 0) & (slot < num_slots))[:, None]
    if key_scales is not None:
        scale = tl.load(scales + kv_head, mask=(kv_head >= 0) & (head < end), other=1.0)
        wide = tl.div_rn(stored.to(tl.float32), scale[:, None])
        # Of the comparisons with what is not a number none holds.
        wide = tl.where(wide > 448.0, 448.0, tl.where(wide < -448.0, -448.0, wide))
        stored = wide.to(layer_kv.dtype.element_ty)
    tl.store(target + kv_head[:, None] * HEAD_DIM + column[None, :], stored, mask=mask)
