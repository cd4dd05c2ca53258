"""RMSNorm in Triton: one program per row, which it holds in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from pagemesh.kernels.early_start import wait_for_earlier


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
