"""Norms over the last dimension: made once per weight, applied once per layer and step."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch.nn import functional


class Norm(Protocol):
    """A norm with its learned weights."""

    def apply(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normed copy of [..., hidden], in the same type."""
        ...


class RmsNorm:
    """RMSNorm in float32, rounded once (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467).

    x / √(mean x² + ε) = √n · x / hypot(‖x‖, √(n·ε)); √n is part of the weight already. On a CPU this
    is half the number of tensor operations of torch's rms_norm, whose calls dominate at batch size 1.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        """`weight` is float32 [..., n], one or as many as there are rows to norm."""
        size = weight.shape[-1]
        self.floor = torch.tensor(math.sqrt(size * eps))
        self.gain = weight * math.sqrt(size)

    def apply(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Norm`."""
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        return torch.div(hidden, length.hypot_(self.floor)).mul_(self.gain).to(hidden.dtype)


class LayerNorm:
    """LayerNorm with bias (Ba et al. 2016, https://arxiv.org/abs/1607.06450)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> None:
        """`weight` and `bias` are [n], in the type of what is normed."""
        self._weight = weight
        self._bias = bias
        self._shape = weight.shape
        self._eps = eps

    def apply(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Norm`."""
        return functional.layer_norm(hidden, self._shape, self._weight, self._bias, self._eps)
