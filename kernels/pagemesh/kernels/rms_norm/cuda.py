"""RMSNorm on CUDA devices: one program per row, which it holds in registers.

A row is read once and written once: its time is that of its bytes.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier
from pagemesh.kernels.launch import BoundKernel, cdiv, next_power_of_2
from pagemesh.kernels.rms_norm.interface import UnscaledRows, check_rows

RUN: Final = 64
"""Columns whose squares are added up before others are added."""

_RUN = tl.constexpr(RUN)


class CudaRmsNorm:
    """`RmsNormFunction` of CUDA tensors."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight.contiguous()
        self.eps = eps
        self.num_runs = num_runs(weight.shape[-1])
        size = weight.shape[-1]
        block = next_power_of_2(size)
        fixed = {"weight": self.weight, "size": size, "eps": eps, "BLOCK": block}
        # 8 values for each thread: two accesses of 16 bytes in half precision.
        num_warps = min(max(block // 256, 1), 16)
        self._norms, self._adds = (
            BoundKernel(rms_norm_kernel, fixed | absent, num_warps=num_warps, overlaps=True)
            for absent in ({"residual": None, "residual_stride": 0}, {})
        )
        block = max(block, RUN)
        self._weighs = {
            keeps_runs: BoundKernel(
                weigh_rows_kernel,
                fixed | {"KEEPS_RUNS": keeps_runs, "BLOCK": block},
                num_warps=num_warps,
                overlaps=True,
            )
            for keeps_runs in (False, True)
        }

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._norm(rows, None)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        check_rows(residual, self.weight)
        return self._norm(rows, residual if residual.stride(-1) == 1 else residual.contiguous())

    def weigh(self, rows: torch.Tensor, *, keeps_runs: bool) -> UnscaledRows:
        """Rows [T, n] for a product that scales, with the sums of their squares or, without those, with the scales."""
        check_rows(rows, self.weight)
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        num_rows = rows.shape[0]
        output = rows.new_empty(*rows.shape)
        shape = (num_rows, self.num_runs) if keeps_runs else (num_rows,)
        squares = rows.new_empty(shape, dtype=torch.float32)
        self._weighs[keeps_runs].start(
            (num_rows,),
            {"rows": rows, "row_stride": rows.stride(0), "output": output, "squares": squares},
        )
        return UnscaledRows(output, squares)

    def _norm(self, rows: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        check_rows(rows, self.weight)
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        # Not the shape as it is, which torch takes three times as long to read.
        output = rows.new_empty(*rows.shape)
        arguments = {"rows": rows, "row_stride": rows.stride(0), "output": output}
        if residual is None:
            self._norms.start((rows.shape[0],), arguments)
        else:
            arguments |= {"residual": residual, "residual_stride": residual.stride(0)}
            self._adds.start((rows.shape[0],), arguments)
        return output


@triton.jit
def rms_norm_kernel(
    rows,
    row_stride,
    weight,
    residual,
    residual_stride,
    output,
    size,
    eps,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """`output` [T, size] lies densely; `residual` is added where there is one."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    weights = tl.load(weight + columns, mask=mask, other=0.0)
    wait_for_earlier(EARLY)
    values = tl.load(rows + row * row_stride + columns, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(values * values, axis=0) / size
    scale = tl.rsqrt(mean + eps)
    normed = values * scale * weights
    if residual is not None:
        place = residual + row * residual_stride + columns
        normed += tl.load(place, mask=mask, other=0.0).to(tl.float32)
    tl.store(output + row * size + columns, normed.to(output.dtype.element_ty), mask=mask)


def num_runs(size: int) -> int:
    """Sums of squares that are kept of a row."""
    return cdiv(size, RUN)


@triton.jit
def weigh_rows_kernel(
    rows,
    row_stride,
    weight,
    output,
    squares,
    size,
    eps,
    KEEPS_RUNS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """`output` [T, size] and `squares`, float32 [T, runs] or the scales [T], lie densely."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    weights = tl.load(weight + columns, mask=mask, other=0.0)
    wait_for_earlier(EARLY)
    values = tl.load(rows + row * row_stride + columns, mask=mask, other=0.0).to(tl.float32)
    weighted = (values * weights).to(output.dtype.element_ty)
    tl.store(output + row * size + columns, weighted, mask=mask)
    NUM_RUNS: tl.constexpr = BLOCK // _RUN
    sums = sum_squares(tl.reshape(values, (NUM_RUNS, _RUN, 1)))
    if KEEPS_RUNS:
        run = tl.arange(0, NUM_RUNS)[:, None]
        runs = tl.cdiv(size, _RUN)
        tl.store(squares + row * runs + run, sums, mask=run < runs)
    else:
        # Its only element, as one number.
        scale = tl.sum(scales_of(sums, size, eps), axis=0)
        tl.store(squares + row, scale)


@triton.jit
def sum_squares(values):
    """The sums over the columns of runs [runs, columns, rows], float32 [runs, rows]."""
    return sum_halves(values * values)


@triton.jit
def scales_of(sums, size, eps):
    """1 / √(mean x² + eps) of rows of so many numbers, of the sums of their runs [runs, rows], zeros beyond the last."""
    RUNS: tl.constexpr = sums.shape[0]
    ROWS: tl.constexpr = sums.shape[1]
    total = tl.reshape(sum_halves(tl.reshape(sums, (1, RUNS, ROWS))), (ROWS,))
    return tl.rsqrt(total / size + eps)


@triton.jit
def sum_halves(numbers):
    """The sums over the second of three dimensions, a power of two: one half is added to the other until there is one
    number. So neither the layout of a tile nor zeros behind the numbers show in a sum."""
    FIRST: tl.constexpr = numbers.shape[0]
    LENGTH: tl.constexpr = numbers.shape[1]
    LAST: tl.constexpr = numbers.shape[2]
    if LENGTH == 1:
        sums = tl.reshape(numbers, (FIRST, LAST))
    else:
        halves = tl.reshape(numbers, (FIRST, 2, LENGTH // 2, LAST))
        sums = sum_halves(tl.sum(halves, axis=1))
    return sums
