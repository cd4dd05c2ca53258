"""RMSNorm on CUDA devices. A row is read once and written once: its time is that of its bytes."""

from __future__ import annotations

import torch

from pagemesh.kernels.launch import launch
from pagemesh.kernels.rms_norm.interface import check_rows
from pagemesh.kernels.rms_norm.kernel import rms_norm_kernel
from pagemesh.kernels.whole_numbers import next_power_of_2


class CudaRmsNorm:
    """`RmsNormFunction` of CUDA tensors."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight.contiguous()
        self._size = weight.shape[-1]
        self._eps = eps
        self._block = next_power_of_2(self._size)
        # 8 values for each thread: two accesses of 16 bytes in half precision.
        self._num_warps = min(max(self._block // 256, 1), 16)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._norm(rows, None)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        check_rows(residual, self._weight)
        return self._norm(rows, residual if residual.stride(-1) == 1 else residual.contiguous())

    def _norm(self, rows: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        check_rows(rows, self._weight)
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        output = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        launch(
            rms_norm_kernel,
            (rows.shape[0],),
            {
                "rows": rows,
                "row_stride": rows.stride(0),
                "weight": self._weight,
                "residual": residual,
                "residual_stride": 0 if residual is None else residual.stride(0),
                "output": output,
                "size": self._size,
                "eps": self._eps,
                "BLOCK": self._block,
            },
            num_warps=self._num_warps,
            overlaps=True,
        )
        return output
