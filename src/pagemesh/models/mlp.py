"""The dense half of a layer."""

from __future__ import annotations

from typing import Protocol

import torch

from pagemesh.kernels.linear import Linear
from pagemesh.models.expansion import Expansion


class FeedForward(Protocol):
    """What a layer does after attention: one MLP, or a mixture of them."""

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, hidden] to [T, hidden]."""
        ...

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The sum of [T, hidden] and `compute`, as a new tensor."""
        ...


class Mlp:
    """Gate, up and the activation, then down."""

    def __init__(self, expand: Expansion, down: Linear) -> None:
        self._expand = expand
        self._down = down

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._down(self._expand(hidden))

    def add_to(self, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self._down.add_to(residual, self._expand(hidden))
