"""What stands between the two projections of an MLP; all overwrite what they are given where they can."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from pagemesh.models.spec import MlpSpec

ActivationFunction = Callable[[torch.Tensor], torch.Tensor]


def make_activation(mlp: MlpSpec) -> ActivationFunction:
    """From the first projection's output, [T, 2 · intermediate] when gated, to [T, intermediate]."""
    if not mlp.gated:
        return functional.gelu
    if mlp.activation == "clamped_swiglu":
        return ClampedSwiglu(mlp.limit, mlp.alpha)
    return {"silu": _silu_gate, "gelu_tanh": _gelu_tanh_gate, "gelu": _gelu_gate}[mlp.activation]


def _silu_gate(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate).mul_(up)


def _gelu_gate(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.gelu(gate).mul_(up)


def _gelu_tanh_gate(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.gelu(gate, approximate="tanh").mul_(up)


class ClampedSwiglu:
    """(up + 1) · gate · sigmoid(alpha · gate) with gate <= limit and |up| <= limit (GPT-OSS)."""

    def __init__(self, limit: float, alpha: float) -> None:
        self._limit = limit
        self._alpha = alpha

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Overwrites `gate_up`."""
        gate, up = gate_up.chunk(2, -1)
        gate.clamp_(max=self._limit)
        up.clamp_(-self._limit, self._limit)
        return torch.sigmoid(gate * self._alpha).mul_(gate).mul_(up.add_(1))
