"""The plain definition."""

from __future__ import annotations

import torch

from pagemesh.kernels.rms_norm.interface import check_rows


class ReferenceRmsNorm:
    """`RmsNormFunction` by torch, on every device."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._norm(rows).to(rows.dtype)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return (residual.float() + self._norm(rows)).to(rows.dtype)

    def _norm(self, rows: torch.Tensor) -> torch.Tensor:
        check_rows(rows, self._weight)
        wide = rows.float()
        mean = wide.square().mean(dim=-1, keepdim=True)
        return wide * torch.rsqrt(mean + self._eps) * self._weight
