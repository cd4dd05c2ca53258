"""What happens to query and key heads between their projection and attention: norm and rotation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from pagemesh.kernels.rope import Rotation


class HeadTransform(Protocol):
    """Changes heads in place."""

    def apply(self, heads: torch.Tensor, rotations: Sequence[torch.Tensor]) -> None:
        """`heads` is [T, query and key heads, head_dim]; `rotations` are those of the step's positions,
        one for each RoPE of the model, complex64 [T, head_dim / 2]."""
        ...


class Keep:
    """Leaves heads as they are: positions enter through the attention."""

    def apply(self, heads: torch.Tensor, rotations: Sequence[torch.Tensor]) -> None:
        """See `HeadTransform`."""


class Rotate:
    """RoPE, with or without a norm of the heads."""

    def __init__(self, rope: int, rotation: Rotation) -> None:
        """`rope` is the number of the layer's RoPE in the model."""
        self._rope = rope
        self._rotate = rotation

    def apply(self, heads: torch.Tensor, rotations: Sequence[torch.Tensor]) -> None:
        """See `HeadTransform`."""
        self._rotate(heads, rotations[self._rope])
