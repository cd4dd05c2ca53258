"""Random numbers for tensors of quantised weights."""

from __future__ import annotations

from typing import Final

import torch

_RANGES: Final = {
    torch.uint8: (0, 256),
    torch.int8: (-128, 128),
    # Without NaN, and powers of two that are small.
    torch.float8_e4m3fn: (0, 120),
    torch.float8_e8m0fnu: (112, 119),
}


def random_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Of a tensor's shape and type, such that products are finite."""
    bounds = _RANGES.get(tensor.dtype)
    if bounds is None:
        return torch.rand(tensor.shape, device=device).mul_(0.001).to(tensor.dtype)
    kept = torch.int8 if tensor.dtype == torch.int8 else torch.uint8
    return torch.randint(*bounds, tensor.shape, dtype=kept, device=device).view(tensor.dtype)
