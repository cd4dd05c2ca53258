"""Matmuls on CUDA devices: few rows in the time of reading the weight, and a row the same bits in any
number of them, which cuBLAS does not promise."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.linear.cuda_product import Product
from pagemesh.kernels.linear.cuda_weight import KernelWeight, takes_codes
from pagemesh.kernels.linear.interface import (
    GatedLinear,
    Linear,
    Lookup,
    NormedProduct,
    ScalesRows,
    StepwiseGatedLinear,
    Summed,
)
from pagemesh.kernels.linear.tiles import SMALL
from pagemesh.kernels.linear.weight import Dense, Plain, RowStack, Weight
from pagemesh.kernels.rms_norm.cuda import CudaRmsNorm
from pagemesh.kernels.rms_norm.interface import UnscaledRows


def make_cuda_linear(weight: Weight, bias: torch.Tensor | None) -> Linear:
    """See `make_linear`."""
    return CudaRowStack(weight, bias) if isinstance(weight, RowStack) else CudaLinear(weight, bias)


def make_cuda_gated_linear(weight: Weight, bias: torch.Tensor | None, gate: Gate) -> GatedLinear:
    """See `make_gated_linear`."""
    if isinstance(weight, RowStack) and takes_codes(weight):
        # Parts whose products are not those of one dense weight.
        activate = make_gated_activation(gate, weight.device)
        return StepwiseGatedLinear(make_cuda_linear(weight, bias), activate)
    return CudaGatedLinear(weight, bias, gate)


def make_cuda_lookup(table: Plain) -> Lookup:
    """See `make_lookup`."""
    weight = None if isinstance(table, Dense) else KernelWeight(table)
    return table.rows if weight is None or not weight.is_unpacked else weight.rows


class CudaLinear(ScalesRows):
    """`Linear` of CUDA tensors."""

    def __init__(self, weight: Weight, bias: torch.Tensor | None) -> None:
        self.product = Product(weight, bias, None)

    def behind(self, norm: object) -> NormedProduct | None:
        return _normed_product(norm, self.product)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.product.multiply(inputs, None)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return self.product.multiply(inputs, residual)


class CudaRowStack:
    """`Linear` over parts that are kept otherwise, one after the other."""

    def __init__(self, weight: RowStack, bias: torch.Tensor | None) -> None:
        self._sizes = [part.shape[0] for part in weight.parts]
        biases = [None] * len(self._sizes) if bias is None else bias.split(self._sizes)
        self._parts = [CudaLinear(*each) for each in zip(weight.parts, biases, strict=True)]

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(inputs) for part in self._parts], 1)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        pieces = zip(self._parts, residual.split(self._sizes, 1), strict=True)
        return torch.cat([part.add_to(piece, inputs) for part, piece in pieces], 1)


class CudaGatedLinear(ScalesRows):
    """`GatedLinear` of CUDA tensors."""

    def __init__(self, weight: Weight, bias: torch.Tensor | None, gate: Gate) -> None:
        self._product = Product(weight, bias, gate)

    def behind(self, norm: object) -> NormedProduct | None:
        return _normed_product(norm, self._product)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._product.multiply(inputs, None)


def _normed_product(norm: object, product: Product) -> NormedProduct | None:
    if isinstance(norm, CudaRmsNorm) and product.follow(norm):
        return NormedProduct(CudaSumNorm(norm), product.multiply_unscaled)
    return None


_MOST_SUMMED: Final = 256
"""Rows whose squares products sum up. Steps of more are not short of time for a kernel, which computes the scales once
where each program of the next product would."""

_MOST_RUNS: Final = 128
"""Sums of squares in rows of which there may be so many; of longer ones there is one tile, or registers run out."""


class CudaSumNorm:
    """`SumNorm` whose rows the product behind it scales."""

    def __init__(self, norm: CudaRmsNorm) -> None:
        self._norm = norm
        self._most_summed = _MOST_SUMMED if norm.num_runs <= _MOST_RUNS else SMALL

    def __call__(self, hidden: torch.Tensor) -> UnscaledRows:
        return self._norm.weigh(hidden, keeps_runs=hidden.shape[0] <= self._most_summed)

    def of_sum(self, product: Linear, residual: torch.Tensor, inputs: torch.Tensor) -> Summed:
        if isinstance(product, CudaLinear) and inputs.shape[0] <= self._most_summed:
            return product.product.add_and_weigh(inputs, residual, self._norm)
        hidden = product.add_to(residual, inputs)
        return hidden, self(hidden)
