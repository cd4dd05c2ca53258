"""Multiplies activations with one fixed weight: every projection of a model.

`make_linear` chooses the implementation once, when a weight is loaded; all of them pass the same tests.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.linear.interface import Linear
from pagemesh.kernels.linear.packed import PackedLinear, can_pack
from pagemesh.kernels.linear.plain import PlainLinear

__all__ = ["Linear", "make_linear"]


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The best implementation for the weight's device and type.

    `weight` is [out, in], `bias` [out] of the same type. A packed weight is a copy: drop the original.
    """
    if can_pack(weight):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)
