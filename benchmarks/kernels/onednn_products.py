"""Weights in oneDNN's blocked layout, made once: what torch's own compiler does with frozen weights."""

from __future__ import annotations

from typing import Final

import torch

_ROWS_PACKED_FOR: Final = 64
"""The layout is the same for any number of rows but one, whose own is slow for more."""


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN computes products with this weight natively."""
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


class PackedLinear:
    """A product with a packed weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_PACKED_FOR)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Rows [T, in] → [T, out]."""
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._weight, None, "none", [], ""
        )
        return output
