"""What a rotation takes, whoever computes it."""

from __future__ import annotations

from collections.abc import Callable

import torch

Rotation = Callable[[torch.Tensor, torch.Tensor], None]
"""Turns heads [T, H, D] in place by factors complex64 [T, D / 2], of which each turns the pair of
dimensions 2 i and 2 i + 1. In float32 and rounded once; the last two dimensions lie densely."""


def check_heads(
    heads: torch.Tensor, factors: torch.Tensor, norm_weight: torch.Tensor | None
) -> None:
    """Raise ValueError unless these can be turned by those."""
    if heads.ndim != 3 or heads.shape[2] % 2 or heads.stride()[1:] != (heads.shape[2], 1):
        raise ValueError(
            f"heads {list(heads.shape)} lie with strides {heads.stride()}, but must lie densely"
            " in two dimensions, the last one even"
        )
    num_tokens, num_heads, head_dim = heads.shape
    if factors.shape != (num_tokens, head_dim // 2) or factors.dtype != torch.complex64:
        raise ValueError(
            f"heads {list(heads.shape)} are not turned by"
            f" factors {list(factors.shape)} of {factors.dtype}"
        )
    if norm_weight is not None and norm_weight.shape != (num_heads, head_dim):
        raise ValueError(
            f"heads {list(heads.shape)} do not fit the norm's weight {list(norm_weight.shape)}"
        )
