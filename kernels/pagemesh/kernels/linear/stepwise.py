"""A projection and the gated activation of what it gives, one after the other."""

from __future__ import annotations

import torch

from pagemesh.kernels.gated_activation import GatedActivation
from pagemesh.kernels.linear.interface import Linear


class StepwiseGatedLinear:
    """`GatedLinear` in two steps; what is in between is rounded."""

    def __init__(self, linear: Linear, activate: GatedActivation) -> None:
        self._linear = linear
        self._activate = activate

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._activate(self._linear(inputs))
