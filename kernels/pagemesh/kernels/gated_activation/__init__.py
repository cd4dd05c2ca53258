"""What stands between the two projections of a gated MLP: the activation of the gates times the ups.

SwiGLU and GeGLU of Shazeer 2020 (https://arxiv.org/abs/2002.05202), and GPT-OSS's clamped variant.
`make_gated_activation` chooses the implementation once, when a model is loaded.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.gated_activation.interface import (
    Gate,
    GatedActivation,
    ReferenceGatedActivation,
)

__all__ = ["Gate", "GatedActivation", "make_gated_activation"]


def make_gated_activation(gate: Gate, device: torch.device) -> GatedActivation:
    """The implementation on a device."""
    match backend_for("gated_activation", device):
        case "cpu":
            from pagemesh.kernels.gated_activation.cpu import CpuGatedActivation

            return CpuGatedActivation(gate)
        case "cuda":
            from pagemesh.kernels.gated_activation.cuda import CudaGatedActivation

            return CudaGatedActivation(gate)
        case "reference":
            return ReferenceGatedActivation(gate)
