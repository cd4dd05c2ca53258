"""What paged attention takes and gives, whoever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch


class AttentionShape(NamedTuple):
    """What is the same for all steps of a model."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_blocks: int  # in the whole cache
    block_size: int
    dtype: torch.dtype
    causal: bool = (
        True  # whether queries see no keys behind their own; else all of their sequence's
    )


@dataclass(frozen=True, slots=True, eq=False)
class LayerAttention:
    """How one layer attends; made once per model. Two of them are equal only when they are the same."""

    scale: float
    """Factor of the products of queries and keys; 1 / √head_dim in most models."""

    sliding_window: int | None = None
    """A query at position p sees the keys at positions above p - sliding_window, and without causality
    those below p + sliding_window; all when None."""

    soft_cap: float | None = None
    """Scaled scores s become soft_cap · tanh(s / soft_cap), before anything is masked (Gemma 2,
    https://arxiv.org/abs/2408.00118)."""

    sinks: torch.Tensor | None = None
    """[heads]: one more logit of each head in the denominator of its softmax (GPT-OSS; after
    attention sinks, Xiao et al. 2023, https://arxiv.org/abs/2309.17453)."""

    alibi_slopes: torch.Tensor | None = None
    """[heads]: slope · (key position - query position) is added to the scaled scores (ALiBi, Press et
    al. 2021, https://arxiv.org/abs/2108.12409)."""


class PagedSequence(NamedTuple):
    """One sequence's share of a step."""

    num_queries: int  # tokens of this step: 1 for a decode, a chunk for a prefill
    context_len: int  # tokens with KV, those of this step included
    block_ids: Sequence[int]  # block table, covers at least the context


class AttentionPlan(Protocol):
    """One step's work, prepared once and run once per layer, before the next step is planned."""

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        """Attention of all sequences' queries, with what is particular to the layer.

        `query` is [T, heads, head_dim] in the order of the sequences, possibly strided; query head h
        reads kv head h // (heads / kv heads). `layer_kv` is [2, blocks, block_size, kv heads,
        head_dim] and holds the step's own keys and values already; nothing outside the sequences'
        contexts influences the result, not even NaN. Gives a contiguous tensor of the query's shape.

        Raises ValueError for another query, and for features that attention without causality lacks.
        """
        ...


class PagedAttention(Protocol):
    """A way to compute paged attention for one model; used by one thread at a time."""

    def plan(self, sequences: Sequence[PagedSequence]) -> AttentionPlan:
        """Prepare a step. Neighbours of similar length and one query each are computed together.

        Raises ValueError for a sequence without queries or whose block table is too short.
        """
        ...


def check_sequences(shape: AttentionShape, sequences: Sequence[PagedSequence]) -> None:
    """Raise ValueError unless every sequence has queries and blocks for all of its context."""
    for sequence in sequences:
        num_slots = len(sequence.block_ids) * shape.block_size
        if not 0 < sequence.num_queries <= sequence.context_len <= num_slots:
            raise ValueError(
                f"{sequence.num_queries} queries at the end of {sequence.context_len} tokens "
                f"do not fit {len(sequence.block_ids)} blocks of {shape.block_size}"
            )


def check_features(shape: AttentionShape, features: LayerAttention) -> None:
    """Raise ValueError for slopes, which count distances backwards, without causality."""
    if not shape.causal and features.alibi_slopes is not None:
        raise ValueError("attention that is not causal has no slopes")


def check_query(query: torch.Tensor, shape: AttentionShape, num_queries: int) -> None:
    """Raise ValueError unless the query is what the plan was made for."""
    if query.shape != (num_queries, shape.num_heads, shape.head_dim) or query.dtype != shape.dtype:
        raise ValueError(
            f"the query is {query.dtype} {list(query.shape)}, but the plan is for {shape.dtype} "
            f"{[num_queries, shape.num_heads, shape.head_dim]}"
        )
