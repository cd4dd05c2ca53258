"""The plain definition: float32, one sequence and one query at a time.

And the reusable plan of implementations that no CUDA graph captures, which plans anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pagemesh.kernels.kv_scales import from_int8
from pagemesh.kernels.paged_attention.interface import (
    AttentionPlan,
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedAttention,
    PagedSequence,
    check_capacity,
    check_features,
    check_kv,
    check_query,
    check_sequences,
    check_shape,
    check_tables,
)


class Replanned:
    """`ReusablePlan` by any `PagedAttention`."""

    def __init__(
        self,
        attention: PagedAttention,
        shape: AttentionShape,
        capacity: Capacity,
    ) -> None:
        self._attention = attention
        self._shape = shape
        self._capacity = capacity
        self._num_queries = 0
        self._plan: AttentionPlan | None = None

    def refill(self, sequences: Sequence[PagedSequence]) -> None:
        check_capacity(self._shape, sequences, self._capacity)
        self._num_queries = sum(sequence.num_queries for sequence in sequences)
        self._plan = self._attention.plan(sequences) if sequences else None

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        check_query(query, self._shape, self._capacity.num_queries)
        output = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        if self._plan is not None:
            used = query[: self._num_queries]
            output[: self._num_queries] = self._plan.attend(used, layer_kv, features)
        return output


class ReferencePagedAttention:
    """`PagedAttention` to compare others with."""

    def __init__(self, shape: AttentionShape) -> None:
        check_shape(shape)
        self._shape = shape

    def plan(self, sequences: Sequence[PagedSequence]) -> ReferencePlan:
        check_sequences(self._shape, sequences)
        for sequence in sequences:
            check_tables(np.array(sequence.block_ids), self._shape.num_blocks)
        return ReferencePlan(self._shape, tuple(sequences))

    def make_reusable(self, capacity: Capacity, layers: Sequence[LayerAttention]) -> Replanned:
        return Replanned(self, self._shape, capacity)


class ReferencePlan:
    """`AttentionPlan` of the reference."""

    def __init__(self, shape: AttentionShape, sequences: Sequence[PagedSequence]) -> None:
        self._shape = shape
        self._sequences = sequences

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        check_query(query, self._shape, sum(s.num_queries for s in self._sequences))
        check_kv(layer_kv, self._shape)
        check_features(self._shape, features)
        factors = torch.ones(2, self._shape.num_kv_heads, device=layer_kv.device)
        if features.kv_scales is not None:
            factors = torch.stack(features.kv_scales)
        num_groups = self._shape.num_heads // self._shape.num_kv_heads
        outputs = []
        row = 0
        for sequence in self._sequences:
            blocks = layer_kv[:, list(sequence.block_ids)].flatten(1, 2)
            blocks = from_int8(blocks) if blocks.dtype == torch.int8 else blocks.float()
            blocks = blocks * factors[:, None, :, None]
            keys, values = blocks.repeat_interleave(num_groups, dim=2)  # [slots, heads, head_dim]
            first = sequence.context_len - sequence.num_queries
            for position in range(first, sequence.context_len):
                window = features.sliding_window or sequence.context_len
                end = position + (1 if self._shape.causal else window)
                seen = slice(max(position + 1 - window, 0), min(end, sequence.context_len))
                scores = torch.einsum("hd,shd->hs", query[row].float(), keys[seen])
                weights = _weights(scores * features.scale, features)
                outputs.append(torch.einsum("hs,shd->hd", weights, values[seen]))
                row += 1
        return torch.stack(outputs).to(query.dtype)


def _weights(scores: torch.Tensor, features: LayerAttention) -> torch.Tensor:
    """Softmax over the visible keys up to the query's own, [heads, keys], float32."""
    num_heads, num_keys = scores.shape
    if features.soft_cap is not None:
        scores = features.soft_cap * torch.tanh(scores / features.soft_cap)
    if features.alibi_slopes is not None:
        distances = torch.arange(1 - num_keys, 1, device=scores.device)
        scores = scores + features.alibi_slopes.float()[:, None] * distances
    if features.sinks is not None:
        scores = torch.cat([scores, features.sinks.float().view(num_heads, 1)], dim=1)
    return torch.softmax(scores, dim=1)[:, :num_keys]
