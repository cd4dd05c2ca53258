"""RMSNorm (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467), in float32 and rounded once.

`make_rms_norm` chooses the implementation once, when a weight is loaded; all pass the same tests.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagemesh.kernels.rms_norm.cpu import CpuRmsNorm
from pagemesh.kernels.rms_norm.reference import ReferenceRmsNorm

__all__ = ["RmsNormFunction", "make_rms_norm"]

RmsNormFunction = Callable[[torch.Tensor], torch.Tensor]


def make_rms_norm(weight: torch.Tensor, eps: float) -> RmsNormFunction:
    """x / √(mean x² + eps) · weight for rows [T, n], as a new tensor; the weight is float32 [n]."""
    if weight.device.type == "cpu":
        return CpuRmsNorm(weight, eps)
    return ReferenceRmsNorm(weight, eps)
