"""Multiplies activations with one fixed weight: every projection of a model.

`make_linear` and `make_gated_linear` choose the implementation once, when a weight is loaded; all of them
pass the same tests. A weight of any kind enters through them. It may be brought into another layout, as a copy: drop
the original. What is quantised is multiplied as what it stands for, but for weights whose rows of activations become
codes of 8 bits as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.linear.interface import (
    GatedLinear,
    Linear,
    Lookup,
    NormedProduct,
    PlainLinear,
    ScalesRows,
    StepwiseGatedLinear,
    StepwiseSumNorm,
    Summed,
    SumNorm,
)
from pagemesh.kernels.linear.reference import Int8Linear
from pagemesh.kernels.linear.weight import Dense, Plain, Weight, takes_int8_rows
from pagemesh.kernels.rms_norm.interface import NormedRows

__all__ = [
    "Dense",
    "Gate",
    "GatedLinear",
    "Linear",
    "Lookup",
    "NormedProduct",
    "StepwiseSumNorm",
    "SumNorm",
    "Summed",
    "Weight",
    "make_gated_linear",
    "make_linear",
    "make_lookup",
    "make_normed_product",
]


def make_linear(weight: Weight, bias: torch.Tensor | None = None) -> Linear:
    """The best implementation for the weight's device and type.

    `weight` is [out, in], `bias` [out] of the same type.
    """
    match backend_for("linear", weight.device):
        case "cpu":
            from pagemesh.kernels.linear.cpu import make_cpu_linear

            return make_cpu_linear(weight, bias)
        case "cuda":
            from pagemesh.kernels.linear.cuda import make_cuda_linear

            return make_cuda_linear(weight, bias)
        case "reference":
            return _reference(weight, bias)


def make_gated_linear(weight: Weight, bias: torch.Tensor | None, gate: Gate) -> GatedLinear:
    """The same for a projection whose outputs, gates before ups, go through a gated activation.

    `weight` is [2 · out, in], `bias` [2 · out].
    """
    match backend_for("linear", weight.device):
        case "cpu":
            from pagemesh.kernels.linear.cpu import make_cpu_gated_linear

            return make_cpu_gated_linear(weight, bias, gate)
        case "cuda":
            from pagemesh.kernels.linear.cuda import make_cuda_gated_linear

            return make_cuda_gated_linear(weight, bias, gate)
        case "reference":
            activate = make_gated_activation(gate, weight.device)
            return StepwiseGatedLinear(_reference(weight, bias), activate)


def make_normed_product(
    norm: Callable[[torch.Tensor], torch.Tensor],
    product: Callable[[torch.Tensor], torch.Tensor],
) -> NormedProduct:
    """A norm and a product that alone reads what it norms, made of both, which may share the work."""
    if isinstance(product, ScalesRows):
        together = product.behind(norm)
        if together is not None:
            return together
    # Nobody but the norm beside it gives it rows.
    return NormedProduct(
        StepwiseSumNorm(norm), cast("Callable[[NormedRows], torch.Tensor]", product)
    )


def make_lookup(table: Plain) -> Lookup:
    """Rows of a table [rows, in], which stays as it is kept, and where it is. It may be a weight of `make_linear`, too."""
    match backend_for("linear", table.device):
        case "cpu":
            from pagemesh.kernels.linear.table_lookup import make_cpu_lookup

            return make_cpu_lookup(table)
        case "cuda":
            from pagemesh.kernels.linear.cuda import make_cuda_lookup

            return make_cuda_lookup(table)
        case "reference":
            return table.rows


def _reference(weight: Weight, bias: torch.Tensor | None) -> Linear:
    if takes_int8_rows(weight):
        return Int8Linear(weight, bias)
    return PlainLinear(weight.dense(), bias)
