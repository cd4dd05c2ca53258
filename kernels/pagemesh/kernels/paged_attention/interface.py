"""What paged attention takes and gives, whoever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.kernels.kv_scales import FP8, KvScales, check_scales, row_size


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
    kv_dtype: torch.dtype | None = None  # of keys and values; None: as `dtype`

    @property
    def stored(self) -> torch.dtype:
        """Type of keys and values."""
        return self.kv_dtype or self.dtype

    @property
    def row_size(self) -> int:
        """Elements of a head's keys, or values, of one token: in int8 the bytes of their scale are among them."""
        is_plain = self.stored == self.dtype
        return self.head_dim if is_plain else row_size(self.head_dim, self.stored)


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

    kv_scales: KvScales | None = None
    """Of keys and values in FP8."""


class PagedSequence(NamedTuple):
    """One sequence's share of a step."""

    num_queries: int  # tokens of this step: 1 for a decode, a chunk for a prefill
    context_len: int  # tokens with KV, those of this step included
    block_ids: Sequence[int]  # block table, covers at least the context


class Capacity(NamedTuple):
    """What a reusable plan has room for."""

    num_sequences: int
    num_blocks: int  # in all block tables together
    chunk_tokens: int | None = None  # queries of all sequences together; None: one of each, decodes

    @property
    def num_queries(self) -> int:
        """Of all sequences together."""
        return self.num_sequences if self.chunk_tokens is None else self.chunk_tokens

    @property
    def longest(self) -> int:
        """Most queries of one sequence."""
        return 1 if self.chunk_tokens is None else self.chunk_tokens


class AttentionPlan(Protocol):
    """One step's work, prepared once and run once per layer, before the next step is planned."""

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        """Attention of all sequences' queries, with what is particular to the layer.

        `query` is [T, heads, head_dim] in the order of the sequences, possibly strided; query head h
        reads kv head h // (heads / kv heads). `layer_kv` is [2, blocks, block_size, kv heads,
        row_size] and holds the step's own keys and values already; nothing outside the sequences'
        contexts influences the result, not even NaN. Gives a contiguous tensor of the query's shape.

        Raises ValueError for another query or another layer's KV than the plan is for, and for features
        that attention without causality lacks.
        """
        ...


class ReusablePlan(AttentionPlan, Protocol):
    """A step whose work is replaced in place: what a CUDA graph that captured `attend` reads.

    `attend` takes as many queries as there is room for and can be captured: it starts the same kernels on the
    same memory whatever was filled in. Those behind the sequences' read nothing and give zeros.
    """

    def refill(self, sequences: Sequence[PagedSequence]) -> None:
        """Take other sequences, ordered on the device behind the work that was started before.

        Raises ValueError as `PagedAttention.plan` does, and for more sequences, queries or blocks than
        there is room for.
        """
        ...


class PagedAttention(Protocol):
    """A way to compute paged attention for one model; used by one thread at a time."""

    def plan(self, sequences: Sequence[PagedSequence]) -> AttentionPlan:
        """Prepare a step. Neighbours of similar length and one query each are computed together.

        Raises ValueError for a sequence without queries, whose block table is too short or names blocks
        that there are not.
        """
        ...

    def make_reusable(self, capacity: Capacity, layers: Sequence[LayerAttention]) -> ReusablePlan:
        """A plan for whatever fits, empty at first.

        `layers` are all features that it will be asked to attend with.
        """
        ...


def check_sequences(shape: AttentionShape, sequences: Sequence[PagedSequence]) -> None:
    """Raise ValueError unless every sequence has queries and blocks for all of its context."""
    if not sequences:
        raise ValueError("there are no sequences to plan for")
    for sequence in sequences:
        num_slots = len(sequence.block_ids) * shape.block_size
        if not 0 < sequence.num_queries <= sequence.context_len <= num_slots:
            raise ValueError(
                f"{sequence.num_queries} queries at the end of {sequence.context_len} tokens "
                f"do not fit {len(sequence.block_ids)} blocks of {shape.block_size}"
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


def check_features(shape: AttentionShape, features: LayerAttention) -> None:
    """Raise ValueError for features that make no sense, or not together.

    Slopes count distances backwards, so they need causality.
    """
    if not shape.causal and features.alibi_slopes is not None:
        raise ValueError("attention that is not causal has no slopes")
    positive = {
        "scale": features.scale,
        "soft cap": features.soft_cap,
        "sliding window": features.sliding_window,
    }
    for name, value in positive.items():
        if value is not None and not value > 0:
            raise ValueError(f"the {name} is {value}, but must be above 0")
    for name, per_head in (("sinks", features.sinks), ("slopes", features.alibi_slopes)):
        if per_head is not None and per_head.shape != (shape.num_heads,):
            raise ValueError(
                f"the {name} are {list(per_head.shape)}, but there are {shape.num_heads} heads"
            )
    check_scales(features.kv_scales, shape.stored, shape.num_kv_heads)


def check_query(query: torch.Tensor, shape: AttentionShape, num_queries: int) -> None:
    """Raise ValueError unless the query is what the plan was made for."""
    if query.shape != (num_queries, shape.num_heads, shape.head_dim) or query.dtype != shape.dtype:
        raise ValueError(
            f"the query is {query.dtype} {list(query.shape)}, but the plan is for {shape.dtype} "
            f"{[num_queries, shape.num_heads, shape.head_dim]}"
        )


def check_tables(tables: npt.NDArray[np.int64], num_blocks: int) -> None:
    """Raise ValueError for a block id, of those in any block table, that there is not."""
    if len(tables) and (tables.min() < 0 or tables.max() >= num_blocks):
        wrong = tables[(tables < 0) | (tables >= num_blocks)][0]
        raise ValueError(f"block {wrong} was named, but there are {num_blocks}")


def check_kv(layer_kv: torch.Tensor, shape: AttentionShape) -> None:
    """Raise ValueError unless a layer's keys and values are what the plan was made for.

    Keys lie densely, and so do values; the two may lie apart.
    """
    size = (2, shape.num_blocks, shape.block_size, shape.num_kv_heads, shape.row_size)
    if layer_kv.shape != size or layer_kv.dtype != shape.stored:
        raise ValueError(
            f"keys and values are {layer_kv.dtype} {list(layer_kv.shape)}, but the plan is for"
            f" {shape.stored} {list(size)}"
        )
    if not layer_kv[0].is_contiguous():
        raise ValueError(
            f"keys and values {list(layer_kv.shape)} have strides {list(layer_kv.stride())},"
            " but must lie densely"
        )


def check_shape(shape: AttentionShape) -> None:
    """Raise ValueError for a shape that no attention has."""
    if shape.num_heads % shape.num_kv_heads or min(shape[:5]) < 1:
        raise ValueError(
            f"{shape.num_heads} heads over {shape.num_kv_heads} kv heads of {shape.head_dim} in"
            f" {shape.num_blocks} blocks of {shape.block_size} make no attention"
        )
    if shape.stored not in (shape.dtype, FP8, torch.int8):
        raise ValueError(f"queries in {shape.dtype} do not fit keys and values in {shape.stored}")
