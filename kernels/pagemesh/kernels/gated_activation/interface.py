"""What a gated activation takes and gives, whoever computes it."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch


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
