"""Random weights of each quantised kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from pagemesh.kernels.linear.packed import ChannelInt8, Codebook, GroupInt, ScaledFp8, pack_halves
from pagemesh.kernels.linear.weight import Quantised, RowStack, Weight

TABLE: Final = tuple(float(n * abs(n)) / 8 for n in range(-8, 8))

Shape = tuple[int, ...]


def random_codes(shape: Shape, bits: int) -> torch.Tensor:
    codes = torch.randint(0, 1 << bits, shape, dtype=torch.uint8)
    return codes if bits == 8 else pack_halves(codes)


def int4(shape: Shape, dtype: torch.dtype) -> GroupInt:
    """With zero points, in groups of 8."""
    groups = (*shape[:-1], shape[-1] // 8)
    zeros = torch.randint(0, 16, groups, dtype=torch.uint8)
    return GroupInt(
        dtype, random_codes(shape, 4), torch.rand(groups).half(), 4, 8, zero_points=zeros
    )


def int4_act_order(shape: Shape, dtype: torch.dtype) -> GroupInt:
    *leading, _, num_inputs = shape
    groups = torch.stack(
        [torch.randperm(num_inputs) // 8 for _ in range(leading[0] if leading else 1)]
    )
    scales = torch.rand(*shape[:-1], num_inputs // 8).half()
    return GroupInt(
        dtype,
        random_codes(shape, 4),
        scales,
        4,
        8,
        centre=8,
        input_groups=groups.int().view(*leading, 1, num_inputs),
    )


def int8(shape: Shape, dtype: torch.dtype) -> GroupInt:
    """A scale to a row."""
    scales = torch.rand(*shape[:-1], 1) / 64
    return GroupInt(dtype, random_codes(shape, 8), scales, 8, shape[-1], centre=128)


def int4_units(shape: Shape, dtype: torch.dtype) -> GroupInt:
    """As in llama.cpp's Q4_K, but in runs of 2 groups of 4."""
    groups = (*shape[:-1], shape[-1] // 4)
    units = (*shape[:-1], shape[-1] // 8)
    scales, minimums = (torch.randint(0, 64, groups, dtype=torch.uint8) for _ in range(2))
    scale_units, minimum_units = (torch.rand(units).half() / 64 for _ in range(2))
    return GroupInt(
        dtype,
        random_codes(shape, 4),
        scales,
        4,
        4,
        minimums=minimums,
        scale_units=scale_units,
        minimum_units=minimum_units,
    )


def fp8_rows(shape: Shape, dtype: torch.dtype) -> ScaledFp8:
    return ScaledFp8(
        dtype, torch.randn(shape).to(torch.float8_e4m3fn), torch.rand(*shape[:-1], 1), shape[-1]
    )


def fp8_blocks(shape: Shape, dtype: torch.dtype) -> ScaledFp8:
    """Runs of 5 inputs, of which the last is shorter."""
    scales = torch.rand(*shape[:-1], -(-shape[-1] // 5))
    return ScaledFp8(dtype, torch.randn(shape).to(torch.float8_e4m3fn), scales, 5)


def codebook(shape: Shape, dtype: torch.dtype) -> Codebook:
    groups = (*shape[:-1], shape[-1] // 4)
    return Codebook(dtype, random_codes(shape, 4), torch.rand(groups), TABLE, 4)


def powers_of_two(shape: Shape, dtype: torch.dtype) -> Codebook:
    groups = (*shape[:-1], shape[-1] // 4)
    scales = torch.randint(124, 130, groups, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    return Codebook(dtype, random_codes(shape, 4), scales, TABLE, 4)


def channel_int8(shape: Shape, dtype: torch.dtype) -> ChannelInt8:
    """Whose rows of activations have scales of their own."""
    codes = torch.randint(-128, 128, shape, dtype=torch.int8)
    return ChannelInt8(dtype, codes, torch.rand(*shape[:-1], 1) / 64)


def channel_int8_static(shape: Shape, dtype: torch.dtype) -> ChannelInt8:
    return replace(channel_int8(shape, dtype), input_scale=torch.full((*shape[:-2], 1, 1), 1 / 64))


PLAIN_KINDS: Final[dict[str, Callable[[Shape, torch.dtype], Quantised]]] = {
    function.__name__: function
    for function in (
        int4,
        int4_act_order,
        int8,
        int4_units,
        fp8_rows,
        fp8_blocks,
        codebook,
        powers_of_two,
        channel_int8,
        channel_int8_static,
    )
}


def row_stack(shape: Shape, dtype: torch.dtype) -> RowStack:
    """Half of the rows in 4 bits, half in 8."""
    half = (*shape[:-2], shape[-2] // 2, shape[-1])
    return RowStack((int4(half, dtype), int8(half, dtype)))


KINDS: Final[dict[str, Callable[[Shape, torch.dtype], Weight]]] = {
    **PLAIN_KINDS,
    "row_stack": row_stack,
}

WEIGHTS_ALONE: Final = [kind for kind in KINDS if not kind.startswith("channel_int8")]
"""Kinds whose products are those of what they stand for."""
