"""Chooses among the products that are made for CPUs, by the weight's type."""

from __future__ import annotations

import torch

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.linear.interface import GatedLinear, Linear
from pagemesh.kernels.linear.panels import DTYPES, GatedPanelLinear, PanelLinear
from pagemesh.kernels.linear.plain import PlainLinear
from pagemesh.kernels.linear.stepwise import StepwiseGatedLinear


def make_cpu_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """See `make_linear`."""
    if weight.dtype in DTYPES:
        return PanelLinear(weight, bias)
    return PlainLinear(weight, bias)


def make_cpu_gated_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, gate: Gate
) -> GatedLinear:
    """See `make_gated_linear`."""
    if weight.dtype in DTYPES:
        return GatedPanelLinear(weight, bias, gate)
    activate = make_gated_activation(gate, weight.device)
    return StepwiseGatedLinear(make_cpu_linear(weight, bias), activate)
