"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864) in place.

`make_rotation` chooses the implementation once, when a model is loaded; all pass the same tests.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.rope.interface import Rotation
from pagemesh.kernels.rope.reference import ReferenceRotation

__all__ = ["Rotation", "make_rotation"]


def make_rotation(
    device: torch.device, norm_weight: torch.Tensor | None = None, norm_eps: float = 0.0
) -> Rotation:
    """A rotation; with a weight, float32 [H, D], it turns the heads' RMSNorm."""
    match backend_for("rope", device):
        case "cpu":
            from pagemesh.kernels.rope.cpu import CpuRotation

            return CpuRotation(norm_weight, norm_eps)
        case "cuda":
            from pagemesh.kernels.rope.cuda import CudaRotation

            return CudaRotation(norm_weight, norm_eps)
        case "reference":
            return ReferenceRotation(norm_weight, norm_eps)
