"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864) in place.

`make_rotation` chooses the implementation once, when a model is loaded; all pass the same tests.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagemesh.kernels.rope.cpu import CpuRotation
from pagemesh.kernels.rope.reference import ReferenceRotation

__all__ = ["Rotation", "make_rotation"]

Rotation = Callable[[torch.Tensor, torch.Tensor], None]
"""Turns heads [T, H, D] in place by factors complex64 [T, D / 2], of which each turns the pair of
dimensions 2 i and 2 i + 1. In float32 and rounded once; the last two dimensions lie densely."""


def make_rotation(
    device: torch.device, norm_weight: torch.Tensor | None = None, norm_eps: float = 0.0
) -> Rotation:
    """A rotation; with a weight, float32 [H, D], it turns the heads' RMSNorm."""
    if device.type == "cpu":
        return CpuRotation(norm_weight, norm_eps)
    return ReferenceRotation(norm_weight, norm_eps)
