"""Rows as codes of 8 bits, as `ChannelInt8` and `ScaledFp8` define them, on CUDA devices: one program per row, which reads
it twice, the second time from a cache, where its numbers share a scale."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier
from pagemesh.kernels.launch import cdiv, launch, next_power_of_2

_MOST_AT_ONCE: Final = 4096
"""Numbers of a row."""

_MOST_INT8 = tl.constexpr(127.0)
_MOST_FP8 = tl.constexpr(448.0)
_LEAST = tl.constexpr(2.0**-100)
_ROUNDING = tl.constexpr(1.5 * 2.0**23)
"""A small float added to it is rounded to a whole number, half way to an even one."""
_SUBNORMAL_ROUNDING = tl.constexpr(2.0**14)
"""To a multiple of 2^-9, by which subnormal e4m3 numbers differ."""
_NORMAL = tl.constexpr(2.0**-6)
"""The least e4m3 number that is not subnormal."""


def int8_rows(
    rows: torch.Tensor, input_scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, int8 [T, in], and scales, float32 [1, T], of rows [T, in], a row's elements side by side; `input_scale` is
    float32 of one element, in place of each row's own."""
    num_rows, size = rows.shape
    codes = torch.empty(num_rows, size, dtype=torch.int8, device=rows.device)
    scales = torch.empty(1, num_rows, dtype=torch.float32, device=rows.device)
    block = min(next_power_of_2(size), _MOST_AT_ONCE)
    launch(
        int8_rows_kernel,
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


def fp8_rows(
    rows: torch.Tensor, input_scale: torch.Tensor | None, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, float8_e4m3fn [T, in], and scales, float32 [runs, T], of rows [T, in], a row's elements side by side.

    `group` inputs share a scale, a power of two, or all of a row if it is 0. `input_scale` is float32 of one element, in
    place of each row's own.
    """
    num_rows, size = rows.shape
    codes = torch.empty(num_rows, size, dtype=torch.float8_e4m3fn, device=rows.device)
    num_runs = cdiv(size, group) if group else 1
    scales = torch.empty(num_runs, num_rows, dtype=torch.float32, device=rows.device)
    block = max(min(next_power_of_2(size), _MOST_AT_ONCE), group)
    launch(
        fp8_rows_kernel,
        (num_rows,),
        {
            "rows": rows,
            "row_stride": rows.stride(0),
            "input_scale": input_scale,
            "codes": codes.view(torch.uint8),
            "scales": scales,
            "num_rows": num_rows,
            "size": size,
            "NUM_RUNS": block // group if group else 0,
            "BLOCK": block,
        },
        num_warps=min(max(block // 256, 1), 16),
        overlaps=True,
    )
    return codes, scales


@triton.jit
def load_numbers(row, start, size, BLOCK: tl.constexpr):
    """Of the elements of a row from `start` on, float32 [BLOCK], zeros beyond its end."""
    column = start + tl.arange(0, BLOCK)
    return tl.load(row + column, mask=column < size, other=0.0).to(tl.float32)


@triton.jit
def distances_of(numbers):
    """From 0. A NaN is no number's maximum, but not less than infinity either."""
    return tl.where(numbers == numbers, tl.abs(numbers), float("inf"))


@triton.jit
def scaled(numbers, factor):
    """What is not finite becomes 0, as its scale says what it was."""
    return tl.where(tl.abs(numbers) < float("inf"), numbers, 0.0) * factor


@triton.jit
def scale_of(largest, input_scale, MOST: tl.constexpr):
    """The scale of numbers of which none is farther from 0, NaN if not all are finite; and what they are multiplied with
    to lie within MOST."""
    if input_scale is None:
        is_zero = largest < _LEAST
        divisor = tl.where(is_zero, 1.0, largest)
        scale = tl.where(is_zero, 0.0, tl.div_rn(largest, MOST))
        factor = tl.where(is_zero, 0.0, tl.div_rn(MOST, divisor))
    else:
        scale = tl.load(input_scale)
        factor = tl.div_rn(1.0, scale)
    return tl.where(largest < float("inf"), scale, float("nan")), factor


@triton.jit
def e4m3_codes(numbers):
    """uint8 of float32 within -448 and 448, rounded to the nearest, half way to an even one."""
    bits = numbers.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # 20 digits fewer, and another exponent's zero.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    shifted = tl.abs(numbers) + _SUBNORMAL_ROUNDING
    subnormal = shifted.to(tl.int32, bitcast=True) & 0xFF
    code = tl.where(tl.abs(numbers) < _NORMAL, subnormal, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def store_e4m3(codes, numbers, start, size, BLOCK: tl.constexpr):
    """Numbers [BLOCK] as codes of a row's elements from `start` on."""
    numbers = tl.minimum(tl.maximum(numbers, -_MOST_FP8), _MOST_FP8)
    column = start + tl.arange(0, BLOCK)
    tl.store(codes + column, e4m3_codes(numbers), mask=column < size)


@triton.jit
def int8_rows_kernel(
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
        numbers = load_numbers(rows, start, size, BLOCK)
        largest = tl.maximum(largest, tl.max(distances_of(numbers), axis=0))
    scale, factor = scale_of(largest, input_scale, _MOST_INT8)
    tl.store(scales + row, scale)
    for start in range(0, size, BLOCK):
        numbers = load_numbers(rows, start, size, BLOCK)
        numbers = tl.minimum(tl.maximum(scaled(numbers, factor), -128.0), 127.0)
        whole = (numbers + _ROUNDING) - _ROUNDING
        column = start + tl.arange(0, BLOCK)
        tl.store(codes + row * size + column, whole.to(tl.int8), mask=column < size)


@triton.jit(do_not_specialize=["num_rows"])
def fp8_rows_kernel(
    rows,
    row_stride,
    input_scale,
    codes,
    scales,
    num_rows,
    size,
    NUM_RUNS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """`codes` [T, size], as uint8, and `scales` [runs, T] lie densely. NUM_RUNS of a row's runs are BLOCK inputs; 0 where
    a row is one."""
    wait_for_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64)
    rows += row * row_stride
    codes += row * size
    scales += row
    if NUM_RUNS:
        RUN: tl.constexpr = BLOCK // NUM_RUNS
        for start in range(0, size, BLOCK):
            numbers = tl.reshape(load_numbers(rows, start, size, BLOCK), (NUM_RUNS, RUN))
            largest = tl.max(distances_of(numbers), axis=1)
            scale, factor = scale_of(largest, input_scale, _MOST_FP8)
            run = start // RUN + tl.arange(0, NUM_RUNS)
            tl.store(scales + run * num_rows, scale, mask=run * RUN < size)
            store_e4m3(
                codes, tl.reshape(scaled(numbers, factor[:, None]), (BLOCK,)), start, size, BLOCK
            )
    else:
        largest = 0.0
        for start in range(0, size, BLOCK):
            numbers = load_numbers(rows, start, size, BLOCK)
            largest = tl.maximum(largest, tl.max(distances_of(numbers), axis=0))
        scale, factor = scale_of(largest, input_scale, _MOST_FP8)
        tl.store(scales, scale)
        for start in range(0, size, BLOCK):
            numbers = scaled(load_numbers(rows, start, size, BLOCK), factor)
            store_e4m3(codes, numbers, start, size, BLOCK)
