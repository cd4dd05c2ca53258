"""Paged attention: a decode reads all KV of its context once; a prompt's work is its products.

Bytes: keys and values of every visible position, queries and outputs. Flops: two products of head_dim
for every pair of a query head and a visible key. For decodes these are `num_heads / num_kv_heads`
multiplications per value read, far below what any device can do in that time: the limit is the memory's.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple

import torch
from contest import Contest, Run
from torch.nn import functional

from pagemesh.kernels.kv_scales import FP8, KvScales, to_int8
from pagemesh.kernels.paged_attention import (
    AttentionShape,
    LayerAttention,
    PagedSequence,
    make_paged_attention,
)

BLOCK = 16
ITEM = 2
"""Bytes of a bfloat16."""


EIGHT_BITS = {"FP8": FP8, "int8": torch.int8}


class Heads(NamedTuple):
    """Of a model."""

    model: str
    num_heads: int
    num_kv_heads: int
    head_dim: int


MODELS = {"cpu": Heads("160M", 12, 4, 64), "cuda": Heads("Llama 3 8B", 32, 8, 128)}


class Batch:
    """Sequences of one length, scattered over a cache of just their blocks."""

    def __init__(
        self, heads: Heads, device: torch.device, num_sequences: int, num_queries: int, context: int
    ) -> None:
        self.heads = heads
        self.kv_scales: KvScales | None = None
        self.num_sequences, self.num_queries, self.context = num_sequences, num_queries, context
        per_sequence = -(-context // BLOCK)
        num_blocks = num_sequences * per_sequence
        self.kv = torch.randn(
            2, num_blocks, BLOCK, heads.num_kv_heads, heads.head_dim, device=device
        ).bfloat16()
        self.tables = torch.randperm(num_blocks).view(num_sequences, per_sequence)
        num_tokens = num_sequences * num_queries
        self.query = torch.randn(
            num_tokens, heads.num_heads, heads.head_dim, device=device
        ).bfloat16()

    def stored(self, dtype: torch.dtype) -> Batch:
        """The same with keys and values in eight bits."""
        other = copy(self)
        if dtype == torch.int8:
            other.kv = to_int8(self.kv)
        else:
            other.kv = self.kv.to(dtype)
            ones = torch.ones(self.heads.num_kv_heads)
            other.kv_scales = KvScales(ones, ones)
        return other

    @property
    def num_bytes(self) -> float:
        """See the module."""
        keys_values = 2 * self.num_sequences * self.context * self.heads.num_kv_heads
        row_bytes = self.kv.shape[-1] * self.kv.itemsize
        return keys_values * row_bytes + 2 * self.query.numel() * ITEM

    @property
    def num_flops(self) -> float:
        """See the module."""
        before = self.context - self.num_queries
        pairs = self.num_queries * before + self.num_queries * (self.num_queries + 1) / 2
        return 4 * self.num_sequences * self.heads.num_heads * pairs * self.heads.head_dim

    def ours(self) -> Run:
        """Our kernel."""
        device = self.query.device
        _, num_blocks, *_ = self.kv.shape
        shape = AttentionShape(
            *self.heads[1:], num_blocks, BLOCK, torch.bfloat16, kv_dtype=self.kv.dtype
        )
        sequences = [
            PagedSequence(self.num_queries, self.context, table) for table in self.tables.tolist()
        ]
        plan = make_paged_attention(shape, device).plan(sequences)
        features = LayerAttention(self.heads.head_dim**-0.5, kv_scales=self.kv_scales)
        return lambda: plan.attend(self.query, self.kv, features)

    def by_gather(self) -> Run:
        """Copying the blocks together for torch's fused attention, in its fastest form for the case."""
        tables = self.tables.flatten().to(self.query.device)
        num_groups = self.heads.num_heads // self.heads.num_kv_heads
        heads = self.query.view(self.num_sequences, self.num_queries, *self.query.shape[1:])
        if self.num_queries == 1:
            # The heads of a group as queries of one head: faster than leaving them to torch.
            query = heads.view(self.num_sequences, self.heads.num_kv_heads, num_groups, -1)
            options: dict[str, Any] = {}
        elif self.num_queries == self.context:
            query, options = heads.transpose(1, 2), {"is_causal": True, "enable_gqa": True}
        else:
            mask = torch.full(
                (self.num_queries, self.context), -torch.inf, device=self.query.device
            )
            mask = mask.triu_(self.context - self.num_queries + 1).bfloat16()
            query, options = heads.transpose(1, 2), {"attn_mask": mask, "enable_gqa": True}

        def run() -> torch.Tensor:
            keys, values = (
                half.index_select(0, tables)
                .view(self.num_sequences, -1, *half.shape[2:])[:, : self.context]
                .transpose(1, 2)
                for half in self.kv
            )
            return functional.scaled_dot_product_attention(query, keys, values, **options)

        return run


def contests(device: torch.device, *, quick: bool) -> Iterator[Contest]:
    """Decodes, on a CPU also with KV in eight bits, then chunks of prompts."""
    heads = MODELS[device.type]
    on_gpu = device.type == "cuda"
    sizes = (1, 8, 64, 256) if on_gpu else (1, 8, 32)
    contexts = (1024, 4096, 8192) if on_gpu else (128, 512, 1024, 2048, 4096)
    for num_sequences in sizes:
        for context in contexts[::2] if quick else contexts:
            batch = Batch(heads, device, num_sequences, 1, context)
            yield Contest(
                f"{heads.model}: {num_sequences} decodes of {context}",
                batch.num_bytes,
                batch.num_flops,
                {"ours": batch.ours(), "SDPA with a gather": batch.by_gather()}
                | _by_flashinfer(batch),
                aim=0.85 if on_gpu else None,
                least_speedup=None if on_gpu else 2.0,
            )
            for name, dtype in {} if on_gpu else EIGHT_BITS.items():
                small = batch.stored(dtype)
                yield Contest(
                    f"{heads.model}: {num_sequences} decodes of {context}, KV in {name}",
                    small.num_bytes,
                    small.num_flops,
                    {"ours": small.ours(), "KV in bfloat16": batch.ours()},
                )
    for num_queries, context in (
        ((8192, 8192), (2048, 8192)) if on_gpu else ((512, 512), (512, 1024))
    ):
        batch = Batch(heads, device, 1, num_queries, context)
        yield Contest(
            f"{heads.model}: chunk of {num_queries} up to {context}",
            batch.num_bytes,
            batch.num_flops,
            {"ours": batch.ours(), "SDPA with a gather": batch.by_gather()}
            | _by_flashinfer(batch)
            | _by_flex_attention(batch),
            # Segments are added in an order that no batch changes, which a whole prompt pays for.
            aim=0.4 if on_gpu else None,
        )


def _by_flashinfer(batch: Batch) -> dict[str, Run]:
    """FlashInfer over the same blocks, where it is installed (PyPI: flashinfer-python)."""
    device = batch.query.device
    if device.type != "cuda":
        return {}
    try:
        import flashinfer
    except ImportError:
        return {}
    num_sequences, per_sequence = batch.tables.shape
    whole = torch.arange(num_sequences + 1, dtype=torch.int32, device=device)
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        whole * batch.num_queries,
        whole * per_sequence,
        batch.tables.flatten().to(device, torch.int32),
        torch.full(
            (num_sequences,), (batch.context - 1) % BLOCK + 1, dtype=torch.int32, device=device
        ),
        batch.heads.num_heads,
        batch.heads.num_kv_heads,
        batch.heads.head_dim,
        BLOCK,
        causal=True,
        q_data_type=torch.bfloat16,
    )
    keys, values = batch.kv
    return {"FlashInfer": lambda: wrapper.run(batch.query, (keys, values))}


def _by_flex_attention(batch: Batch) -> dict[str, Run]:
    """torch's FlexAttention over keys and values that lie together already."""
    device = batch.query.device
    if device.type != "cuda":
        return {}
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    before = batch.context - batch.num_queries
    mask = create_block_mask(
        lambda b, h, q, k: q + before >= k,
        None,
        None,
        batch.num_queries,
        batch.context,
        device=device,
    )
    keys, values = (
        half[batch.tables.to(device)].flatten(1, 2)[:, : batch.context].transpose(1, 2)
        for half in batch.kv
    )
    heads = batch.query.unsqueeze(0).transpose(1, 2)
    attend = torch.compile(flex_attention, dynamic=False)
    return {"FlexAttention": lambda: attend(heads, keys, values, block_mask=mask, enable_gqa=True)}
