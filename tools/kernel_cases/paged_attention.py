"""Attention of mixed batches and of captured decodes, for the shapes and features of models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from pagemesh.kernels.kv_scales import FP8, KvScales
from pagemesh.kernels.paged_attention import (
    AttentionShape,
    LayerAttention,
    PagedSequence,
    make_paged_attention,
)
from pagemesh.kernels.target import target_of
from tools.kernel_cases.case import Case, meta

_BLOCK_SIZE = 16
_CONTEXT = 40_000  # long enough to be shared by several programs
_CHUNK = 2048


class _Model(NamedTuple):
    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    features: LayerAttention
    dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype | None = None
    causal: bool = True


def _per_head(num_heads: int) -> torch.Tensor:
    return meta(num_heads, dtype=torch.float32)


_MODELS = [
    _Model("Llama 3 8B", 32, 8, 128, LayerAttention(0.1)),
    _Model(
        "Llama 3 8B, KV in FP8",
        32,
        8,
        128,
        LayerAttention(0.1, kv_scales=KvScales(_per_head(8), _per_head(8))),
        kv_dtype=FP8,
    ),
    _Model("Llama 3 8B, float32", 32, 8, 128, LayerAttention(0.1), dtype=torch.float32),
    _Model("GPT-OSS", 64, 8, 64, LayerAttention(0.1, 128, sinks=_per_head(64))),
    _Model("Gemma 2 27B", 32, 16, 128, LayerAttention(0.1, 4096, soft_cap=50.0)),
    _Model("Gemma 2 9B", 16, 8, 256, LayerAttention(0.1, 4096, soft_cap=50.0)),
    _Model("Phi 3 mini", 32, 32, 96, LayerAttention(0.1, 2047)),
    _Model("MPT 30B", 64, 64, 112, LayerAttention(0.1, alibi_slopes=_per_head(64))),
    _Model("ModernBERT", 16, 16, 64, LayerAttention(0.1, 64), causal=False),
]


def cases() -> Iterator[Case]:
    """A chunk of a prompt and a decode, each shared by several programs."""
    for model in _MODELS:
        if model.kv_dtype is not None and target_of(torch.device("meta")).capability < 89:
            continue
        num_blocks = 2 * _CONTEXT // _BLOCK_SIZE
        shape = AttentionShape(
            model.num_heads,
            model.num_kv_heads,
            model.head_dim,
            num_blocks,
            _BLOCK_SIZE,
            model.dtype,
            model.causal,
            model.kv_dtype,
        )
        attention = make_paged_attention(shape, torch.device("meta"))
        table = range(_CONTEXT // _BLOCK_SIZE)
        sequences = [PagedSequence(n, _CONTEXT, table) for n in (1, _CHUNK)]
        query = meta(1 + _CHUNK, model.num_heads, model.head_dim, dtype=model.dtype)
        layer_kv = meta(
            2, num_blocks, _BLOCK_SIZE, model.num_kv_heads, model.head_dim, dtype=shape.stored
        )
        plan = attention.plan(sequences)
        yield Case(model.name, partial(plan.attend, query, layer_kv, model.features))
