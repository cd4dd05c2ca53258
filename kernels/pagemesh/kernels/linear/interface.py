"""What a linear map takes and gives, whoever computes it."""

from __future__ import annotations

from typing import Protocol

import torch


class Linear(Protocol):
    """x · Wᵀ + b for a weight [out, in] and, if there is one, a bias [out]."""

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Rows [T, in] of the weight's type → [T, out]; at least one row."""
        ...

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """`residual` [T, out] + x · Wᵀ + b as a new tensor; the sum may be rounded once instead of twice."""
        ...


class GatedLinear(Protocol):
    """The gated activation of x · Wᵀ + b, for a weight [2 · out, in] of gates before ups."""

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Rows [T, in] of the weight's type → [T, out]; what is in between may be left unrounded."""
        ...
