"""Rotation on CUDA devices: each head is read and written once, its norm included."""

from __future__ import annotations

from typing import Final

import torch
import triton

from pagemesh.kernels.launch import launch
from pagemesh.kernels.rope.interface import check_heads
from pagemesh.kernels.rope.kernel import rope_kernel

_BLOCK: Final = 1024
"""Values of a program, about: 8 for each thread."""


class CudaRotation:
    """A `Rotation` of CUDA tensors."""

    def __init__(self, norm_weight: torch.Tensor | None, norm_eps: float) -> None:
        self._norm_eps = norm_eps
        self._norm_weight = None if norm_weight is None else norm_weight.contiguous()

    def __call__(self, heads: torch.Tensor, factors: torch.Tensor) -> None:
        """See `Rotation`."""
        check_heads(heads, factors, self._norm_weight)
        num_tokens, num_heads, head_dim = heads.shape
        half_block = triton.next_power_of_2(head_dim // 2)
        most_heads = max(_BLOCK // (2 * half_block), 1)
        block_heads = min(triton.next_power_of_2(num_heads), most_heads)
        launch(
            rope_kernel,
            (num_tokens, triton.cdiv(num_heads, block_heads)),
            {
                "heads": heads,
                "stride": heads.stride(0),
                "factors": torch.view_as_real(factors.contiguous()),
                "norm_weight": self._norm_weight,
                "eps": self._norm_eps,
                "num_heads": num_heads,
                "HEAD_DIM": head_dim,
                "BLOCK_HEADS": block_heads,
                "HALF_BLOCK": half_block,
            },
        )
