"""The plain definition: float32, one sequence and one query at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pagemesh.kernels.paged_attention.interface import (
    AttentionShape,
    PagedSequence,
    check_query,
    check_sequences,
)


class ReferencePagedAttention:
    """`PagedAttention` to compare others with."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape

    def plan(self, sequences: Sequence[PagedSequence]) -> ReferencePlan:
        """See `PagedAttention`."""
        check_sequences(self._shape, sequences)
        return ReferencePlan(self._shape, tuple(sequences))


class ReferencePlan:
    """`AttentionPlan` of the reference."""

    def __init__(self, shape: AttentionShape, sequences: Sequence[PagedSequence]) -> None:
        self._shape = shape
        self._sequences = sequences

    def attend(self, query: torch.Tensor, layer_kv: torch.Tensor) -> torch.Tensor:
        """See `AttentionPlan`."""
        check_query(query, self._shape, sum(s.num_queries for s in self._sequences))
        num_groups = self._shape.num_heads // self._shape.num_kv_heads
        outputs = []
        row = 0
        for sequence in self._sequences:
            blocks = layer_kv[:, list(sequence.block_ids)].flatten(1, 2).float()
            keys, values = blocks.repeat_interleave(num_groups, dim=2)  # [slots, heads, head_dim]
            first = sequence.context_len - sequence.num_queries
            for position in range(first, sequence.context_len):
                seen = slice(0, position + 1)
                scores = torch.einsum("hd,shd->hs", query[row].float(), keys[seen])
                weights = torch.softmax(scores / math.sqrt(self._shape.head_dim), dim=-1)
                outputs.append(torch.einsum("hs,shd->hd", weights, values[seen]))
                row += 1
        return torch.stack(outputs).to(query.dtype)
