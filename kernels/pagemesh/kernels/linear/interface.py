"""What a linear map takes and gives, and the plain definition by torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from pagemesh.kernels.gated_activation import GatedActivation
from pagemesh.kernels.rms_norm.interface import NormedRows


class Matrix(Protocol):
    """What is asked of a weight, whatever it is kept in, before anything is multiplied with it."""

    @property
    def shape(self) -> torch.Size:
        """[out, in]."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows that are multiplied with it."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        ...


Lookup = Callable[[torch.Tensor], torch.Tensor]
"""Rows of a matrix by their numbers: int64 [T] → [T, in]."""


class Linear(Protocol):
    """x · Wᵀ + b for a weight [out, in] and, if there is one, a bias [out]."""

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Rows [T, in] of the weight's type → [T, out]; at least one row."""
        ...

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """`residual` [T, out] + x · Wᵀ + b as a new tensor; the sum may be rounded once instead of twice."""
        ...


class GatedLinear(Protocol):
    """The gated activation of x · Wᵀ + b, for a weight [2 · out, in] of gates before ups."""

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Rows [T, in] of the weight's type → [T, out]; what is in between may be left unrounded."""
        ...


Summed = tuple[torch.Tensor, NormedRows]
"""What a product was added to, as a new tensor, and that normed."""


class SumNorm(Protocol):
    """A norm, of what products are added to."""

    def __call__(self, hidden: torch.Tensor) -> NormedRows:
        """[T, n], normed for the product that this norm was made with, at least one row."""
        ...

    def of_sum(self, product: Linear, residual: torch.Tensor, inputs: torch.Tensor) -> Summed:
        """What `product.add_to` gives, and that normed."""
        ...


class NormedProduct(NamedTuple):
    """A norm, and what reads the normed rows, and nobody else does."""

    norm: SumNorm

    multiply: Callable[[NormedRows], torch.Tensor]


class ScalesRows(ABC):
    """A product that can do a part of a norm's work."""

    @abstractmethod
    def behind(self, norm: object) -> NormedProduct | None:
        """Both, or None if this norm has to do all by itself."""


class StepwiseSumNorm:
    """`SumNorm` in two steps, whose rows are normed to the end."""

    def __init__(self, norm: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._norm = norm

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._norm(hidden)

    def of_sum(self, product: Linear, residual: torch.Tensor, inputs: torch.Tensor) -> Summed:
        hidden = product.add_to(residual, inputs)
        return hidden, self._norm(hidden)


def check_weight(
    weight: Matrix,
    bias: torch.Tensor | None,
    dtypes: Collection[torch.dtype],
    *,
    is_gated: bool,
) -> None:
    """Raise ValueError unless it is a matrix of one of the types, with a bias that fits if there is one."""
    if len(weight.shape) != 2 or not weight.shape.numel() or weight.dtype not in dtypes:
        names = ", ".join(map(str, dtypes))
        raise ValueError(
            f"a weight must be [out, in] of one of {names},"
            f" not {list(weight.shape)} of {weight.dtype}"
        )
    if is_gated and weight.shape[0] % 2:
        raise ValueError(
            f"a weight of gates and ups must be [2 · out, in], not {list(weight.shape)}"
        )
    if bias is not None and (bias.shape != weight.shape[:1] or bias.device != weight.device):
        raise ValueError(
            f"the bias {list(bias.shape)} on {bias.device} does not fit"
            f" the weight {list(weight.shape)} on {weight.device}"
        )


def check_rows(
    inputs: torch.Tensor, residual: torch.Tensor | None, weight: Matrix, num_outputs: int
) -> None:
    """Raise ValueError unless the rows fit the weight, and the residual what comes out."""
    if (
        inputs.ndim != 2
        or inputs.shape[1] != weight.shape[1]
        or (inputs.dtype, inputs.device) != (weight.dtype, weight.device)
    ):
        raise ValueError(
            f"rows {list(inputs.shape)} of {inputs.dtype} on {inputs.device} do not fit"
            f" the weight {list(weight.shape)} of {weight.dtype} on {weight.device}"
        )
    if residual is not None and (
        residual.shape != (inputs.shape[0], num_outputs)
        or (residual.dtype, residual.device) != (inputs.dtype, inputs.device)
    ):
        raise ValueError(
            f"the residual {list(residual.shape)} of {residual.dtype} on {residual.device} does not"
            f" fit outputs {[len(inputs), num_outputs]} of {inputs.dtype} on {inputs.device}"
        )


class PlainLinear:
    """`Linear` over an ordinary weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._transposed = weight.t()
        self._bias = bias

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.linear(inputs, self._weight, self._bias)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        if self._bias is not None:
            residual = residual + self._bias
        return torch.addmm(residual, inputs, self._transposed)


class StepwiseGatedLinear:
    """`GatedLinear` in two steps; what is in between is rounded."""

    def __init__(self, linear: Linear, activate: GatedActivation) -> None:
        self._linear = linear
        self._activate = activate

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._activate(self._linear(inputs))
