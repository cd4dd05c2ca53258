"""Norms over the last dimension: made once per weight, applied once per layer and step."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional


class Norm(Protocol):
    """A norm with its learned weights: one of these, or the kernel of `make_rms_norm`."""

    def __call__(self, hidden: torch.Tensor, /) -> torch.Tensor:
        """[T, hidden], normed, in the same type; what it is given stays as it is."""
        ...

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor, /) -> torch.Tensor:
        """`residual` plus `hidden`, normed, as a new tensor; the sum may be rounded once instead of twice."""
        ...


class NoNorm:
    """Where a model has none."""

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same tensor."""
        return hidden

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return residual + hidden


class LayerNorm:
    """LayerNorm (Ba et al. 2016, https://arxiv.org/abs/1607.06450), with or without a bias."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> None:
        """`weight` and `bias` are [n], in the type of what is normed."""
        self._weight = weight
        self._bias = bias
        self._shape = weight.shape
        self._eps = eps

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(hidden, self._shape, self._weight, self._bias, self._eps)

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self(hidden).add_(residual)
