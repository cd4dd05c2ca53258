"""The plain definition."""

from __future__ import annotations

import torch

from pagemesh.kernels.rope.interface import check_heads


class ReferenceRotation:
    """A `Rotation` by torch, on every device."""

    def __init__(self, norm_weight: torch.Tensor | None, norm_eps: float) -> None:
        self._norm_weight = norm_weight
        self._norm_eps = norm_eps

    def __call__(self, heads: torch.Tensor, factors: torch.Tensor) -> None:
        """See `Rotation`."""
        check_heads(heads, factors, self._norm_weight)
        wide = heads.float()
        if self._norm_weight is not None:
            mean = wide.square().mean(dim=-1, keepdim=True)
            wide = wide * torch.rsqrt(mean + self._norm_eps) * self._norm_weight
        pairs = torch.view_as_complex(wide.reshape(*wide.shape[:2], -1, 2).contiguous())
        turned = torch.view_as_real(pairs * factors.unsqueeze(1))
        heads.copy_(turned.reshape(heads.shape))
