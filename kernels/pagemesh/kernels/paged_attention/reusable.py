"""A reusable plan for implementations that no CUDA graph captures: it plans anew."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemesh.kernels.paged_attention.interface import (
    AttentionPlan,
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedAttention,
    PagedSequence,
    check_query,
    check_sequences,
)


def check_capacity(
    shape: AttentionShape, sequences: Sequence[PagedSequence], capacity: Capacity
) -> None:
    """Raise ValueError for sequences that a reusable plan of this size cannot take."""
    if sequences:
        check_sequences(shape, sequences)
    num_blocks = sum(-(-s.context_len // shape.block_size) for s in sequences)
    longest = max((s.num_queries for s in sequences), default=1)
    num_queries = sum(s.num_queries for s in sequences)
    if (
        len(sequences) > capacity.num_sequences
        or num_blocks > capacity.num_blocks
        or num_queries > capacity.num_queries
        or longest > capacity.longest
    ):
        raise ValueError(
            f"{len(sequences)} sequences of {num_queries} queries, up to {longest} each, over {num_blocks}"
            f" blocks do not fit a plan for {capacity.num_sequences} of {capacity.num_queries}, up to"
            f" {capacity.longest} each, over {capacity.num_blocks}"
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
