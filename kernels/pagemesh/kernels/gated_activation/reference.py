"""The plain definition."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from pagemesh.kernels.gated_activation.interface import Gate, check_gate_up


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
