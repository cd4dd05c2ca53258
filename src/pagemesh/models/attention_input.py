"""The first half of attention: from hidden states to queries, with keys and values stored on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemesh.kernels.linear import Linear
from pagemesh.models.heads import HeadTransform
from pagemesh.models.interface import StepAttention
from pagemesh.models.norms import Norm
from pagemesh.models.spec import AttentionSpec


class AttentionInput:
    """Norm, the fused projection to queries, keys and values, and what is done to their heads."""

    def __init__(
        self,
        layer: int,
        spec: AttentionSpec,
        norm: Norm,
        projection: Linear,
        transform: HeadTransform,
    ) -> None:
        """`projection` gives queries, keys and values; those that are turned in pairs, see `rope`."""
        self._layer = layer
        self._num_heads = spec.num_heads
        self._num_kv_heads = spec.num_kv_heads
        self._num_turned = spec.num_heads + spec.num_kv_heads
        self._num_all = spec.num_heads + 2 * spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._norm = norm
        self._projection = projection
        self._transform = transform

    def project(
        self, hidden: torch.Tensor, rotations: Sequence[torch.Tensor], attention: StepAttention
    ) -> torch.Tensor:
        """Queries [T, heads, head_dim] of [T, hidden]."""
        qkv = self._projection(self._norm.apply(hidden))
        heads = qkv.view(-1, self._num_all, self._head_dim)
        self._transform.apply(heads[:, : self._num_turned], rotations)
        attention.write(
            self._layer,
            heads[:, self._num_heads :].view(-1, 2, self._num_kv_heads, self._head_dim),
        )
        return heads[:, : self._num_heads]
