"""Chooses among the products that are made for CPUs, by the processor and the weight's type."""

from __future__ import annotations

import torch

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.linear.dots import DotLinear, GatedDotLinear, can_dot
from pagemesh.kernels.linear.interface import GatedLinear, Linear
from pagemesh.kernels.linear.packed import PackedLinear, can_pack
from pagemesh.kernels.linear.plain import PlainLinear
from pagemesh.kernels.linear.stepwise import StepwiseGatedLinear


def make_cpu_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """See `make_linear`."""
    if can_dot(weight):
        return DotLinear(weight, bias)
    if can_pack(weight):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def make_cpu_gated_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, gate: Gate
) -> GatedLinear:
    """See `make_gated_linear`."""
    if can_dot(weight):
        return GatedDotLinear(weight, bias, gate)
    activate = make_gated_activation(gate, weight.device)
    return StepwiseGatedLinear(make_cpu_linear(weight, bias), activate)
