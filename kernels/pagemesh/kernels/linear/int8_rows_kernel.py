"""Rows as whole numbers of 8 bits, as `ChannelInt8` defines them, on CUDA devices: one program per row, which reads it
twice, the second time from a cache."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier
from pagemesh.kernels.launch import launch, next_power_of_2

_MOST_AT_ONCE: Final = 4096
"""Numbers of a row."""

_LEAST = tl.constexpr(2.0**-100)
_ROUNDING = tl.constexpr(1.5 * 2.0**23)
"""A small float added to it is rounded to a whole number, half way to an even one."""


def quantise_rows(
    rows: torch.Tensor, input_scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, int8 [T, in], and scales, float32 [T], of rows [T, in], a row's elements side by side; `input_scale` is
    float32 of one element, in place of each row's own."""
    num_rows, size = rows.shape
    codes = torch.empty(num_rows, size, dtype=torch.int8, device=rows.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=rows.device)
    block = min(next_power_of_2(size), _MOST_AT_ONCE)
    launch(
        quantise_rows_kernel,
        (num_rows,),
        {
            "rows": rows,
            "row_stride": rows.stride(0),
            "input_scale": input_scale,
            "codes": codes,
            "scales": scales,
            "size": size,
            "BLOCK": block,
        },
        num_warps=min(max(block // 256, 1), 16),
        overlaps=True,
    )
    return codes, scales


@triton.jit
def quantise_rows_kernel(
    rows,
    row_stride,
    input_scale,
    codes,
    scales,
    size,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """`codes` [T, size] lie densely."""
    wait_for_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64)
    rows += row * row_stride
    largest = 0.0
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        numbers = tl.load(rows + column, mask=column < size, other=0.0).to(tl.float32)
        # A NaN is no number's maximum, but not less than infinity either.
        distances = tl.where(numbers == numbers, tl.abs(numbers), float("inf"))
        largest = tl.maximum(largest, tl.max(distances, axis=0))
    if input_scale is None:
        is_zero = largest < _LEAST
        divisor = tl.where(is_zero, 1.0, largest)
        scale = tl.where(is_zero, 0.0, tl.div_rn(largest, 127.0))
        factor = tl.where(is_zero, 0.0, tl.div_rn(127.0, divisor))
    else:
        scale = tl.load(input_scale)
        factor = tl.div_rn(1.0, scale)
    tl.store(scales + row, tl.where(largest < float("inf"), scale, float("nan")))
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        numbers = tl.load(rows + column, mask=column < size, other=0.0).to(tl.float32)
        # What is not finite spoils the row by its scale, whatever its codes are.
        numbers = tl.where(tl.abs(numbers) < float("inf"), numbers, 0.0)
        numbers = tl.minimum(tl.maximum(numbers * factor, -128.0), 127.0)
        whole = (numbers + _ROUNDING) - _ROUNDING
        tl.store(codes + row * size + column, whole.to(tl.int8), mask=column < size)
