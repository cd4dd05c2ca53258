"""A reusable plan for implementations that no CUDA graph captures: it plans anew."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemesh.kernels.paged_attention.interface import (
    AttentionPlan,
    AttentionShape,
    LayerAttention,
    PagedAttention,
    PagedSequence,
    check_query,
    check_sequences,
)


def check_capacity(
    shape: AttentionShape,
    sequences: Sequence[PagedSequence],
    max_num_seqs: int,
    max_num_blocks: int,
) -> None:
    """Raise ValueError for sequences that a reusable plan of this size cannot take."""
    if sequences:
        check_sequences(shape, sequences)
    num_blocks = sum(-(-s.context_len // shape.block_size) for s in sequences)
    num_queries = max((s.num_queries for s in sequences), default=1)
    if len(sequences) > max_num_seqs or num_blocks > max_num_blocks or num_queries > 1:
        raise ValueError(
            f"{len(sequences)} sequences of up to {num_queries} queries over {num_blocks} blocks do not"
            f" fit a plan for {max_num_seqs} decodes over {max_num_blocks} blocks"
        )


class Replanned:
    """`ReusablePlan` by any `PagedAttention`."""

    def __init__(
        self,
        attention: PagedAttention,
        shape: AttentionShape,
        max_num_seqs: int,
        max_num_blocks: int,
    ) -> None:
        self._attention = attention
        self._shape = shape
        self._capacity = max_num_seqs, max_num_blocks
        self._num_sequences = 0
        self._plan: AttentionPlan | None = None

    def refill(self, sequences: Sequence[PagedSequence]) -> None:
        """See `ReusablePlan`."""
        check_capacity(self._shape, sequences, *self._capacity)
        self._num_sequences = len(sequences)
        self._plan = self._attention.plan(sequences) if sequences else None

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        """See `AttentionPlan`."""
        check_query(query, self._shape, self._capacity[0])
        output = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        if self._plan is not None:
            used = query[: self._num_sequences]
            output[: self._num_sequences] = self._plan.attend(used, layer_kv, features)
        return output
