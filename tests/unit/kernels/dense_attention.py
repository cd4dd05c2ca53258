"""Attention as the papers write it: one query, one head and one key at a time, in float64."""

from __future__ import annotations

import math

import torch

from pagemesh.kernels.paged_attention import AttentionShape, LayerAttention, PagedSequence


def dense_attention(
    shape: AttentionShape,
    sequence: PagedSequence,
    layer_kv: torch.Tensor,
    query: torch.Tensor,
    features: LayerAttention,
) -> torch.Tensor:
    """One sequence's result, of the shape of its queries."""
    output = torch.zeros(query.shape, dtype=torch.float64)
    first = sequence.context_len - sequence.num_queries
    for row in range(sequence.num_queries):
        for head in range(shape.num_heads):
            output[row, head] = _weighted_sum(
                shape,
                sequence,
                layer_kv.double(),
                query[row, head].double(),
                features,
                first + row,
                head,
            )
    return output.to(query.dtype)


def _weighted_sum(
    shape: AttentionShape,
    sequence: PagedSequence,
    layer_kv: torch.Tensor,
    query: torch.Tensor,
    features: LayerAttention,
    position: int,
    head: int,
) -> torch.Tensor:
    kv_head = head // (shape.num_heads // shape.num_kv_heads)
    total = torch.zeros(shape.head_dim, dtype=torch.float64)
    denominator = 0.0 if features.sinks is None else math.exp(features.sinks[head])
    for key_position in range(position + 1 if shape.causal else sequence.context_len):
        distance = abs(position - key_position)
        if features.sliding_window is not None and distance >= features.sliding_window:
            continue
        block = sequence.block_ids[key_position // shape.block_size]
        key, value = layer_kv[:, block, key_position % shape.block_size, kv_head]
        score = features.scale * float(query @ key)
        if features.soft_cap is not None:
            score = features.soft_cap * math.tanh(score / features.soft_cap)
        if features.alibi_slopes is not None:
            score -= float(features.alibi_slopes[head]) * distance
        total += math.exp(score) * value
        denominator += math.exp(score)
    return total / denominator
