"""A layer of paged KV whose unowned slots are all NaN, and sequences scattered over it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagemesh.kernels.kv_scales import to_int8
from pagemesh.kernels.paged_attention import AttentionShape, PagedSequence


class PagedLayer(NamedTuple):
    layer_kv: torch.Tensor  # [2, blocks, block_size, kv heads, row_size]
    sequences: list[PagedSequence]
    query: torch.Tensor  # [T, heads, head_dim]


def make_shape(
    num_heads: int = 6, num_kv_heads: int = 2, head_dim: int = 24, **changes: object
) -> AttentionShape:
    shape = AttentionShape(num_heads, num_kv_heads, head_dim, 90, 5, torch.float32)
    return shape._replace(**changes)  # type: ignore[arg-type]


def make_layer(
    shape: AttentionShape, lengths: Sequence[tuple[int, int]], seed: int = 3
) -> PagedLayer:
    """`lengths` are (queries, context) of each sequence; tables are shuffled and longer than needed."""
    generator = torch.Generator().manual_seed(seed)
    block_ids = list(range(shape.num_blocks))
    random.Random(seed).shuffle(block_ids)
    kv = torch.full(
        (2, shape.num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim), math.nan
    )
    sequences = []
    for num_queries, context in lengths:
        table = [block_ids.pop() for _ in range(-(-context // shape.block_size) + 1)]
        for position in range(context):
            slot = kv[:, table[position // shape.block_size], position % shape.block_size]
            slot.copy_(torch.randn(slot.shape, generator=generator))
        sequences.append(PagedSequence(num_queries, context, table))
    num_tokens = sum(num_queries for num_queries, _ in lengths)
    query = torch.randn(num_tokens, shape.num_heads, shape.head_dim, generator=generator)
    stored = to_int8(kv) if shape.stored == torch.int8 else kv.to(shape.stored)
    return PagedLayer(stored, sequences, query.to(shape.dtype))
