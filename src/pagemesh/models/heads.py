"""What happens to query and key heads between their projection and attention: norm and rotation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from pagemesh.models.norms import RmsNorm
from pagemesh.models.rope import rotate


class HeadTransform(Protocol):
    """Changes heads in place."""

    def apply(self, heads: torch.Tensor, rotations: Sequence[torch.Tensor]) -> None:
        """`heads` is [T, query and key heads, head_dim]; `rotations` are those of the step's positions,
        one for each RoPE of the model, complex64 [T, 1, head_dim / 2]."""
        ...


class Keep:
    """Leaves heads as they are: positions enter through the attention."""

    def apply(self, heads: torch.Tensor, rotations: Sequence[torch.Tensor]) -> None:
        """See `HeadTransform`."""


class Rotate:
    """RoPE."""

    def __init__(self, rope: int) -> None:
        """`rope` is the number of the layer's RoPE in the model."""
        self._rope = rope

    def apply(self, heads: torch.Tensor, rotations: Sequence[torch.Tensor]) -> None:
        """See `HeadTransform`."""
        rotate(heads, rotations[self._rope])


class NormAndRotate:
    """RMSNorm of each head, then RoPE, in float32 and rounded once."""

    def __init__(self, norm: RmsNorm, rope: int) -> None:
        """`norm` has a weight for each head, [query and key heads, head_dim]."""
        self._floor = norm.floor
        self._gain = norm.gain
        self._rope = rope

    def apply(self, heads: torch.Tensor, rotations: Sequence[torch.Tensor]) -> None:
        """See `HeadTransform`."""
        length = torch.linalg.vector_norm(heads, dim=-1, keepdim=True, dtype=torch.float32)
        normed = torch.div(heads, length.hypot_(self._floor)).mul_(self._gain)
        rotate(normed, rotations[self._rope])
        heads.copy_(normed)
