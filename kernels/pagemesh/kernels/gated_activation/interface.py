"""What a gated activation takes and gives, and the plain definition."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Protocol

import torch
from torch.nn import functional


class Gate(NamedTuple):
    """Which function of gate g and up u."""

    kind: Literal["silu", "geglu", "gelu_tanh", "clamped_swiglu"]
    """g · sigmoid(g) · u; gelu(g) · u, with the error function or with tanh; g' · sigmoid(alpha · g') ·
    (u' + 1)."""

    limit: float = 0.0
    """clamped_swiglu: g' = min(g, limit), u' = u between -limit and limit."""

    alpha: float = 1.0
    """clamped_swiglu."""


class GatedActivation(Protocol):
    """Computed in float32 and rounded once."""

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 · n], gates before ups → [T, n], a new tensor."""
        ...


def check_gate_up(gate_up: torch.Tensor) -> None:
    """Raise ValueError unless it is rows of two halves."""
    if gate_up.ndim != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gates and ups must be [T, 2 · n], not {list(gate_up.shape)}")


class ReferenceGatedActivation:
    """`GatedActivation` by torch, on every device."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        check_gate_up(gate_up)
        gates, ups = gate_up.float().chunk(2, -1)
        match self._gate.kind:
            case "silu":
                product = functional.silu(gates) * ups
            case "geglu":
                product = gates * (1 + torch.erf(gates / math.sqrt(2))) / 2 * ups
            case "gelu_tanh":
                product = functional.gelu(gates, approximate="tanh") * ups
            case "clamped_swiglu":
                limit = self._gate.limit
                gates, ups = gates.clamp(max=limit), ups.clamp(-limit, limit)
                product = gates * torch.sigmoid(self._gate.alpha * gates) * (ups + 1)
        return product.to(gate_up.dtype)
