"""Weights in oneDNN's blocked layout, made once: what torch's own compiler does with frozen weights.

Against torch's matrix product this saves packing the weight on every call. In float32 it also leaves
MKL, which is several times slower on processors that are not Intel's. And the result of a row does
not depend, bit for bit, on how many other rows the call has, which MKL does not promise: one token
alone is computed like the same token in a batch or in a chunk of its prompt.
"""

from __future__ import annotations

from typing import Final

import torch

# The layout is the same for any number of rows but one, for which oneDNN would take another one that
# is slow for more.
_ROWS_PACKED_FOR: Final = 64

# Named in full, because torch otherwise looks for the right one on each call.
_MULTIPLY: Final = torch.ops.mkldnn._linear_pointwise.default
_MULTIPLY_ADD: Final = torch.ops.mkldnn._linear_pointwise.binary


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN computes products with this weight natively."""
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


class PackedLinear:
    """`Linear` over a packed weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_PACKED_FOR)
        self._bias = bias
        # In float32 a single row is multiplied by another kernel, which adds up in another order.
        self._min_rows = 2 if weight.dtype == torch.float32 else 1

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        if inputs.shape[0] < self._min_rows:
            return self._multiply(inputs.expand(self._min_rows, -1))[:1]
        return self._multiply(inputs)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        if inputs.shape[0] < self._min_rows:
            residual = residual.expand(self._min_rows, -1)
            return self._multiply_add(residual, inputs.expand(self._min_rows, -1))[:1]
        return self._multiply_add(residual, inputs)

    def _multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = _MULTIPLY(inputs, self._weight, self._bias, "none", [], "")
        return output

    def _multiply_add(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = _MULTIPLY_ADD(inputs, residual, self._weight, self._bias, "add")
        return output
