"""Choosing a token for each row of logits, by one plan on every device."""

from __future__ import annotations

import torch

from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.sampling.interface import (
    NOT_FINITE,
    NOTHING_LEFT,
    SamplingPlan,
    TokenChooser,
)

__all__ = [
    "NOTHING_LEFT",
    "NOT_FINITE",
    "SamplingPlan",
    "TokenChooser",
    "make_token_chooser",
]


def make_token_chooser(vocab_size: int, device: torch.device) -> TokenChooser:
    """The chooser for logits on a device; its calls follow each other on one stream."""
    match backend_for("sampling", device):
        case "cpu" | "reference":
            from pagemesh.kernels.sampling.cpu import CpuTokenChooser

            return CpuTokenChooser()
        case "cuda":
            from pagemesh.kernels.sampling.cuda import CudaTokenChooser

            return CudaTokenChooser(vocab_size, device)
