"""RMSNorm (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467), in float32 and rounded once.

`make_rms_norm` chooses the implementation once, when a weight is loaded; all pass the same tests.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.rms_norm.interface import NormedRows, ReferenceRmsNorm, RmsNormFunction

__all__ = ["NormedRows", "RmsNormFunction", "make_rms_norm"]


def make_rms_norm(weight: torch.Tensor, eps: float) -> RmsNormFunction:
    """A norm with this weight, float32 [n]."""
    match backend_for("rms_norm", weight.device):
        case "cpu":
            from pagemesh.kernels.rms_norm.cpu import CpuRmsNorm

            return CpuRmsNorm(weight, eps)
        case "cuda":
            from pagemesh.kernels.rms_norm.cuda import CudaRmsNorm

            return CudaRmsNorm(weight, eps)
        case "reference":
            return ReferenceRmsNorm(weight, eps)
