"""Products with whole numbers as `ChannelInt8` defines them, by torch, on every device."""

from __future__ import annotations

import torch

from pagemesh.kernels.linear.packed import ChannelInt8
from pagemesh.kernels.linear.weight import RowStack, Weight

_LEAST = 2.0**-100


def multiply_plainly(weight: Weight, rows: torch.Tensor) -> torch.Tensor:
    """float32 [T, out] of rows [T, in] and a matrix of any kind."""
    if isinstance(weight, RowStack):
        return torch.cat([multiply_plainly(part, rows) for part in weight.parts], 1)
    if isinstance(weight, ChannelInt8):
        return _multiply_int8(weight, rows.float())
    return rows.float() @ weight.dense().float().t()


def _multiply_int8(weight: ChannelInt8, rows: torch.Tensor) -> torch.Tensor:
    largest = rows.abs().amax(1, keepdim=True)
    if weight.input_scale is None:
        # torch divides a number by a tensor in two steps, each of which rounds.
        most = torch.full_like(largest, 127.0)
        is_zero = largest < _LEAST
        scales = (largest / most).masked_fill(is_zero, 0)
        factors = (most / largest).masked_fill(is_zero, 0)
    else:
        scales = weight.input_scale.expand_as(largest)
        factors = 1 / scales
    codes = (rows * factors).round().clamp(-128, 127).nan_to_num()
    # Exact: whole numbers below 2^53.
    sums = codes.double() @ weight.codes.double().t()
    scales = scales.masked_fill(~largest.isfinite(), torch.nan)
    return sums.float() * (scales * weight.scales.t())


class Int8Linear:
    """`Linear` over a weight of which some rows, or all, are whole numbers."""

    def __init__(self, weight: Weight, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._total(inputs).to(inputs.dtype)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return (residual.float() + self._total(inputs)).to(inputs.dtype)

    def _total(self, inputs: torch.Tensor) -> torch.Tensor:
        product = multiply_plainly(self._weight, inputs)
        return product if self._bias is None else product + self._bias.float()
