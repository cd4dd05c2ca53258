"""What RMSNorm takes and gives, and the plain definition."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch


class RmsNormFunction(Protocol):
    """x / √(mean x² + eps) · weight of rows [T, n], in float32 and rounded once."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """A new tensor of the same shape and type; the last dimension lies densely, rows may be strided."""
        ...

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`residual` [T, n] + the normed rows, as a new tensor; the sum is rounded once."""
        ...


class UnscaledRows(NamedTuple):
    """Rows x of a norm whose reader scales what it makes of them, by 1 / √(mean x² + eps) of each.

    A product's sums may be scaled as well as its rows, and then whoever writes x need not know all of a row.
    """

    weighted: torch.Tensor
    """x · weight, [T, n], rounded once."""

    squares: torch.Tensor
    """float32 [T, ceil(n / 64)]: the sum of x² of 64 columns after 64; or [T], the scales themselves."""


NormedRows = torch.Tensor | UnscaledRows
"""What a norm gives, for the product that reads it."""


def check_rows(rows: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise ValueError unless the rows are of the weight's size and on its device."""
    if rows.ndim != 2 or rows.shape[-1] != weight.shape[-1] or rows.device != weight.device:
        raise ValueError(
            f"rows {list(rows.shape)} on {rows.device} do not fit"
            f" the weight {list(weight.shape)} on {weight.device}"
        )


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
