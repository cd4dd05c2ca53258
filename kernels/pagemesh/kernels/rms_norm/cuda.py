"""RMSNorm on CUDA devices: one program per row, which it holds in registers.

A row is read once and written once: its time is that of its bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier
from pagemesh.kernels.launch import BoundKernel, next_power_of_2
from pagemesh.kernels.rms_norm.interface import check_rows


class CudaRmsNorm:
    """`RmsNormFunction` of CUDA tensors."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight.contiguous()
        size = weight.shape[-1]
        block = next_power_of_2(size)
        fixed = {"weight": self._weight, "size": size, "eps": eps, "BLOCK": block}
        # 8 values for each thread: two accesses of 16 bytes in half precision.
        num_warps = min(max(block // 256, 1), 16)
        self._norms, self._adds = (
            BoundKernel(rms_norm_kernel, fixed | absent, num_warps=num_warps, overlaps=True)
            for absent in ({"residual": None, "residual_stride": 0}, {})
        )

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._norm(rows, None)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        check_rows(residual, self._weight)
        return self._norm(rows, residual if residual.stride(-1) == 1 else residual.contiguous())

    def _norm(self, rows: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        check_rows(rows, self._weight)
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
