"""GELU, x · Φ(x), with the error function (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415).

`make_gelu` chooses the implementation once, when a model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagemesh.kernels.gelu.cpu import cpu_gelu
from pagemesh.kernels.gelu.reference import reference_gelu

__all__ = ["make_gelu"]


def make_gelu(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """From [T, n] to a new tensor of that shape and type; computed in float32 and rounded once."""
    return cpu_gelu if device.type == "cpu" else reference_gelu
