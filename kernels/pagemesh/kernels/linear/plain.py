"""torch's own matrix product, on every device and for every type; the reference as well."""

from __future__ import annotations

import torch
from torch.nn import functional


class PlainLinear:
    """`Linear` over an ordinary weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._transposed = weight.t()
        self._bias = bias

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.linear(inputs, self._weight, self._bias)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        if self._bias is not None:
            residual = residual + self._bias
        return torch.addmm(residual, inputs, self._transposed)
