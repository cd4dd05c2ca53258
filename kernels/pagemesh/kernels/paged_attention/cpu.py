"""Paged attention on the CPU: gather each sequence's own blocks, then torch's fused attention.

Decodes run in groups of neighbours with similar contexts, so that padding stays small; a group's
gathered KV also stays small enough for the cache that the attention then reads it from. Chunks of
prompts run one by one. The query heads of a kv head are the rows of one small matrix, so that no key
or value is read twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from pagemesh.kernels.paged_attention.interface import (
    AttentionShape,
    LayerAttention,
    PagedSequence,
    check_query,
    check_sequences,
)

# Gathered keys and values of one group of decodes: about the second-level cache of a core.
_MAX_GROUP_BYTES = 1 << 20
# A group may gather this share of blocks more than its sequences have.
_MAX_PADDING = 0.25


class CpuPagedAttention:
    """`PagedAttention` for CPU tensors; keeps one buffer for gathered blocks."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._buffer = torch.empty(0, dtype=shape.dtype)
        block_elements = shape.block_size * shape.num_kv_heads * shape.head_dim
        self._block_elements = block_elements
        self._max_group_blocks = _MAX_GROUP_BYTES // (2 * block_elements * shape.dtype.itemsize)

    def plan(self, sequences: Sequence[PagedSequence]) -> CpuPlan:
        """See `PagedAttention`."""
        check_sequences(self._shape, sequences)
        parts: list[_Part] = []
        row = 0
        for begin, end in pairwise([*self._group_starts(sequences), len(sequences)]):
            members = sequences[begin:end]
            contexts = [member.context_len for member in members]
            rows = slice(row, row + sum(member.num_queries for member in members))
            make_part = _Decodes if members[0].num_queries == 1 else _Chunk
            parts.append(make_part(self._shape, rows, self._gather(members), contexts))
            row = rows.stop
        return CpuPlan(self._shape, parts, row)

    def _group_starts(self, sequences: Sequence[PagedSequence]) -> Iterator[int]:
        """Indices at which a new run of neighbours begins that are computed together."""
        block_size = self._shape.block_size
        size = longest = total = 0
        was_chunk = True
        for index, sequence in enumerate(sequences):
            num_blocks = -(-sequence.context_len // block_size)
            is_chunk = sequence.num_queries > 1
            size, longest, total = size + 1, max(longest, num_blocks), total + num_blocks
            padded = size * longest
            if (
                was_chunk
                or is_chunk
                or padded > self._max_group_blocks
                or padded > (1 + _MAX_PADDING) * total
            ):
                yield index
                size, longest, total = 1, num_blocks, num_blocks
            was_chunk = is_chunk

    def _gather(self, sequences: Sequence[PagedSequence]) -> _Gather:
        block_size = self._shape.block_size
        lengths = [-(-sequence.context_len // block_size) for sequence in sequences]
        table = np.empty((2, len(sequences), max(lengths)), dtype=np.int64)
        for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
            table[0, row, :length] = sequence.block_ids[:length]
            table[0, row, length:] = sequence.block_ids[0]
        np.add(table[0], self._shape.num_blocks, out=table[1])
        num_elements = table.size * self._block_elements
        if self._buffer.numel() < num_elements:
            self._buffer = torch.empty(num_elements, dtype=self._shape.dtype)
        return _Gather(torch.from_numpy(table), self._buffer[:num_elements])


class CpuPlan:
    """`AttentionPlan` of the CPU."""

    def __init__(self, shape: AttentionShape, parts: Sequence[_Part], num_queries: int) -> None:
        self._shape = shape
        self._parts = parts
        self._num_queries = num_queries

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        """See `AttentionPlan`."""
        check_query(query, self._shape, self._num_queries)
        if len(self._parts) == 1:
            return self._parts[0].attend(query, layer_kv, features.scale)
        output = query.new_empty(query.shape)
        for part in self._parts:
            output[part.rows] = part.attend(query[part.rows], layer_kv, features.scale)
        return output


class _Part(Protocol):
    """Queries that are computed by one call."""

    rows: slice

    def attend(self, query: torch.Tensor, layer_kv: torch.Tensor, scale: float) -> torch.Tensor: ...


class _Gather:
    """Copies the blocks of some sequences, padded to the longest, side by side into a buffer."""

    def __init__(self, table: torch.Tensor, buffer: torch.Tensor) -> None:
        """`table` is int64 [2, B, blocks], rows of a layer's blocks of keys and of values."""
        self._block_rows = table.view(-1)
        self._blocks = buffer.view(self._block_rows.numel(), -1)

    def read(self, layer_kv: torch.Tensor) -> None:
        """Fill the buffer from a layer."""
        blocks = layer_kv.view(-1, self._blocks.shape[1])
        torch.index_select(blocks, 0, self._block_rows, out=self._blocks)

    def tokens(self, num_sequences: int, shape: AttentionShape) -> torch.Tensor:
        """The buffer as [2, B, slots, kv heads, head_dim]."""
        return self._blocks.view(2, num_sequences, -1, shape.num_kv_heads, shape.head_dim)


class _Decodes:
    """One query each for a few sequences."""

    def __init__(
        self, shape: AttentionShape, rows: slice, gather: _Gather, contexts: Sequence[int]
    ) -> None:
        self.rows = rows
        self._gather = gather
        self._mask: torch.Tensor | None = None
        self._unused_slots: torch.Tensor | None = None
        num_groups = shape.num_heads // shape.num_kv_heads
        tokens = gather.tokens(len(contexts), shape)
        if len(contexts) == 1:
            # Kv heads as batch: the output then lies in memory as the caller wants it.
            keys, values = tokens[:, 0, : contexts[0]].transpose(1, 2).unsqueeze(2)
            self._query_shape = (shape.num_kv_heads, 1, num_groups, shape.head_dim)
        else:
            keys, values = tokens[:, :, : max(contexts)].transpose(2, 3)
            self._query_shape = (len(contexts), shape.num_kv_heads, num_groups, shape.head_dim)
            if min(contexts) < max(contexts):
                self._hide_unused(np.array(contexts), tokens)
        self._keys, self._values = keys, values

    def attend(self, query: torch.Tensor, layer_kv: torch.Tensor, scale: float) -> torch.Tensor:
        self._gather.read(layer_kv)
        if self._unused_slots is not None:
            self._slots.index_fill_(0, self._unused_slots, 0.0)
        output = scaled_dot_product_attention(
            query.view(self._query_shape),
            self._keys,
            self._values,
            attn_mask=self._mask,
            scale=scale,
        )
        return output.reshape(query.shape)

    def _hide_unused(self, contexts: npt.NDArray[np.int64], tokens: torch.Tensor) -> None:
        """Mask the slots behind each context, and zero them: a weight of 0 does not undo a NaN."""
        unused = np.arange(tokens.shape[2]) >= contexts[:, None]
        slots = np.flatnonzero(unused)
        self._slots = tokens.flatten(0, 2)
        self._unused_slots = torch.from_numpy(np.concatenate([slots, slots + unused.size]))
        mask = torch.from_numpy(unused[:, None, None, : contexts.max()])
        self._mask = torch.zeros(mask.shape, dtype=tokens.dtype).masked_fill_(mask, -math.inf)


class _Chunk:
    """Several queries at the end of one sequence."""

    def __init__(
        self, shape: AttentionShape, rows: slice, gather: _Gather, contexts: Sequence[int]
    ) -> None:
        (context_len,) = contexts
        self.rows = rows
        self._gather = gather
        num_groups = shape.num_heads // shape.num_kv_heads
        self._num_queries = rows.stop - rows.start
        # Kv heads as batch; the heads of a group share their keys and values by a stride of 0.
        tokens = gather.tokens(1, shape)[:, 0, :context_len].transpose(1, 2).unsqueeze(2)
        self._keys, self._values = tokens.expand(-1, -1, num_groups, -1, -1)
        self._query_shape = (
            self._num_queries,
            shape.num_kv_heads,
            num_groups,
            shape.head_dim,
        )
        self._mask: torch.Tensor | None = None
        if context_len > self._num_queries:
            future = torch.full((self._num_queries, context_len), -math.inf, dtype=shape.dtype)
            self._mask = future.triu_(context_len - self._num_queries + 1)

    def attend(self, query: torch.Tensor, layer_kv: torch.Tensor, scale: float) -> torch.Tensor:
        self._gather.read(layer_kv)
        output = scaled_dot_product_attention(
            query.view(self._query_shape).permute(1, 2, 0, 3),
            self._keys,
            self._values,
            attn_mask=self._mask,
            is_causal=self._mask is None,
            scale=scale,
        )
        return output.permute(2, 0, 1, 3).reshape(query.shape)
