"""What stands between the two projections of an MLP; it may overwrite what it is given."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.models.spec import MlpSpec

ActivationFunction = Callable[[torch.Tensor], torch.Tensor]


def make_activation(mlp: MlpSpec) -> ActivationFunction:
    """From the first projection's output, [T, 2 · intermediate] when gated, to [T, intermediate]."""
    if mlp.activation == "gelu":
        return functional.gelu
    gate = Gate(mlp.activation, mlp.limit, mlp.alpha)
    return make_gated_activation(gate, torch.device("cpu"))
