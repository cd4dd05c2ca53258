"""The first half of an MLP: from hidden states to what the second projection multiplies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from pagemesh.kernels.linear import Gate, make_gated_linear, make_linear
from pagemesh.models.spec import MlpSpec

Expansion = Callable[[torch.Tensor], torch.Tensor]
"""[T, hidden] → [T, intermediate]."""


def make_expansion(mlp: MlpSpec, weight: torch.Tensor, bias: torch.Tensor | None) -> Expansion:
    """Projection and activation; the weight is [2 · intermediate, hidden] when there are gates."""
    if mlp.activation == "gelu":
        linear = make_linear(weight, bias)
        return lambda hidden: functional.gelu(linear(hidden))
    return make_gated_linear(weight, bias, gate_of(mlp))


def gate_of(mlp: MlpSpec) -> Gate:
    """That of an MLP that has gates."""
    assert mlp.activation != "gelu"
    return Gate(mlp.activation, mlp.limit, mlp.alpha)
