"""The first half of attention: from hidden states to queries, with keys and values stored on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagemesh.kernels.linear import Linear
from pagemesh.kernels.write_kv import Turn
from pagemesh.models.interface import ForwardContext
from pagemesh.models.norms import Norm
from pagemesh.models.spec import AttentionSpec


@dataclass(frozen=True, slots=True)
class HeadTurn:
    """How a layer turns query and key heads: RoPE, with or without a norm of the heads."""

    rope: int
    """Number of the layer's RoPE in the model."""

    norm_weight: torch.Tensor | None = None
    """See `Turn`."""

    norm_eps: float = 0.0

    def of(self, rotations: Sequence[torch.Tensor]) -> Turn:
        """That of a step; `rotations` are those of its positions, one for each RoPE of the model, complex64 [T,
        head_dim / 2]."""
        return Turn(rotations[self.rope], self.norm_weight, self.norm_eps)


class AttentionInput:
    """Norm, the fused projection to queries, keys and values, and how their heads are turned."""

    def __init__(
        self,
        layer: int,
        spec: AttentionSpec,
        norm: Norm,
        projection: Linear,
        turn: HeadTurn | None,
    ) -> None:
        """`projection` gives queries, keys and values; those that are turned in pairs, see `rope`. Without a turn
        positions enter through the attention."""
        self._layer = layer
        self._num_heads = spec.num_heads
        self._num_all = spec.num_heads + 2 * spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._norm = norm
        self._projection = projection
        self._turn = turn

    def project(
        self, hidden: torch.Tensor, rotations: Sequence[torch.Tensor], attention: ForwardContext
    ) -> torch.Tensor:
        """Queries [T, heads, head_dim] of [T, hidden]."""
        qkv = self._projection(self._norm.apply(hidden))
        heads = qkv.view(-1, self._num_all, self._head_dim)
        turn = None if self._turn is None else self._turn.of(rotations)
        attention.write(self._layer, heads, turn)
        return heads[:, : self._num_heads]
