"""Weights as models hand them to kernels: what a checkpoint has of a matrix, by the kind of its numbers.

Models read weights, put their rows in order and pass them on; only the functions that choose an implementation know
the kinds. Another kind is a class of its own here, in the union `Weight`, with the members that models use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch


@dataclass(frozen=True, slots=True)
class Dense:
    """A number for each input and output, in the type in which rows are multiplied."""

    tensor: torch.Tensor
    """[out, in], or of stacked matrices [matrices, out, in]."""

    @property
    def shape(self) -> torch.Size:
        """Of the matrix, or of the stack, whatever it is kept in."""
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows that are multiplied with it."""
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    def matrix(self, number: int) -> Dense:
        """One of a stack; no copy."""
        return Dense(self.tensor[number])

    def take_rows(self, order: torch.Tensor) -> Dense:
        """A copy with these rows, int64 on the weight's device, in this order."""
        return Dense(self.tensor.index_select(0, order))


Weight: TypeAlias = Dense
"""Of any kind; a union as soon as there is another."""
