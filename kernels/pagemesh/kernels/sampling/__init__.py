"""Choosing a token for each row of logits.

The plain definition, `draw_tokens`, serves the CPU, where the host edits the logits; on a device that the
host does not wait for a `TokenChooser` does both.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.sampling.interface import (
    NOT_FINITE,
    NOTHING_LEFT,
    SamplingPlan,
    TokenChooser,
)
from pagemesh.kernels.sampling.reference import DrawParameters, draw_tokens

__all__ = [
    "NOTHING_LEFT",
    "NOT_FINITE",
    "DrawParameters",
    "SamplingPlan",
    "TokenChooser",
    "draw_tokens",
    "make_token_chooser",
]


def make_token_chooser(vocab_size: int, device: torch.device) -> TokenChooser:
    """A chooser in Triton."""
    from pagemesh.kernels.sampling.cuda import CudaTokenChooser

    return CudaTokenChooser(vocab_size, device)
