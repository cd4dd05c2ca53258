"""Paged attention on the CPU: gather each sequence's own blocks, then attend with torch's kernels.

Decodes run in groups of neighbours with similar contexts, so that padding stays small; a group's
gathered KV also stays small enough for the cache that the attention then reads it from. Chunks of
prompts run one by one. The query heads of a kv head are the rows of one small matrix, so that no key
or value is read twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from pagemesh.kernels.paged_attention.cpu_parts import (
    Chunk,
    Decodes,
    Gather,
    Part,
    Sight,
    Span,
    span_of,
)
from pagemesh.kernels.paged_attention.cpu_softmax import Attend, make_attend
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
        self.shape = shape
        self.methods: dict[LayerAttention, _Method] = {}
        """How each layer that was seen so far is computed."""
        self._buffer = torch.empty(0, dtype=shape.dtype)
        block_elements = shape.block_size * shape.num_kv_heads * shape.head_dim
        self._block_elements = block_elements
        self._max_group_blocks = _MAX_GROUP_BYTES // (2 * block_elements * shape.dtype.itemsize)

    def plan(self, sequences: Sequence[PagedSequence]) -> CpuPlan:
        """See `PagedAttention`."""
        check_sequences(self.shape, sequences)
        return CpuPlan(self, sequences)

    def parts(self, sequences: Sequence[PagedSequence], sight: Sight) -> list[Part]:
        """The work of a step for all layers that see the same; their queries in order of sequences."""
        window, block_size = sight.sliding_window, self.shape.block_size
        spans = [span_of(sequence, window, block_size) for sequence in sequences]
        parts: list[Part] = []
        row = 0
        for begin, end in pairwise([*self._group_starts(spans), len(spans)]):
            members = spans[begin:end]
            rows = slice(row, row + sum(member.num_queries for member in members))
            make_part = Decodes if members[0].num_queries == 1 else Chunk
            parts.append(make_part(self.shape, rows, self._gather(members), members, sight))
            row = rows.stop
        return parts

    def add_method(self, features: LayerAttention) -> _Method:
        """Find out how a layer is computed."""
        sight = Sight(
            features.sliding_window,
            features.alibi_slopes,
            always_masked=features.soft_cap is not None,
        )
        method = self.methods[features] = _Method(sight, make_attend(features))
        return method

    def _group_starts(self, spans: Sequence[Span]) -> Iterator[int]:
        """Indices at which a new run of neighbours begins that are computed together."""
        size = longest = total = 0
        was_chunk = True
        for index, span in enumerate(spans):
            num_blocks = len(span.block_ids)
            is_chunk = span.num_queries > 1
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

    def _gather(self, spans: Sequence[Span]) -> Gather:
        longest = max(len(span.block_ids) for span in spans)
        table = np.empty((2, len(spans), longest), dtype=np.int64)
        for row, (_, block_ids, _, _) in enumerate(spans):
            table[0, row, : len(block_ids)] = block_ids
            table[0, row, len(block_ids) :] = block_ids[0]
        np.add(table[0], self.shape.num_blocks, out=table[1])
        num_elements = table.size * self._block_elements
        if self._buffer.numel() < num_elements:
            self._buffer = torch.empty(num_elements, dtype=self.shape.dtype)
        return Gather(torch.from_numpy(table), self._buffer[:num_elements])


class CpuPlan:
    """`AttentionPlan` of the CPU. Prepares once for all the layers that see the same."""

    def __init__(self, attention: CpuPagedAttention, sequences: Sequence[PagedSequence]) -> None:
        self._attention = attention
        self._sequences = sequences
        self._num_queries = sum(sequence.num_queries for sequence in sequences)
        self._longest = max((sequence.context_len for sequence in sequences), default=0)
        self._parts: dict[Sight, list[Part]] = {}

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        """See `AttentionPlan`."""
        attention = self._attention
        check_query(query, attention.shape, self._num_queries)
        method = attention.methods.get(features) or attention.add_method(features)
        parts = self._parts.get(method.sight) or self._prepare(method.sight)
        if len(parts) == 1:
            return parts[0].attend(query, layer_kv, method.attend)
        output = query.new_empty(query.shape)
        for part in parts:
            output[part.rows] = part.attend(query[part.rows], layer_kv, method.attend)
        return output

    def _prepare(self, sight: Sight) -> list[Part]:
        """The parts for a kind of layers that this step did not have yet."""
        same = sight
        if sight.sliding_window is not None and sight.sliding_window >= self._longest:
            # Every query sees its whole context: like layers without a window.
            same = sight._replace(sliding_window=None)
        if same not in self._parts:
            self._parts[same] = self._attention.parts(self._sequences, same)
        self._parts[sight] = self._parts[same]
        return self._parts[sight]


class _Method(NamedTuple):
    """How a layer is computed."""

    sight: Sight
    attend: Attend
