"""The queries of a step in parts that one call each computes, and the keys and values that they see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.kernels.paged_attention.cpu_softmax import Attend, Visible
from pagemesh.kernels.paged_attention.interface import AttentionShape, PagedSequence


class Sight(NamedTuple):
    """What the queries of a layer see of their contexts, and how strongly."""

    sliding_window: int | None
    alibi_slopes: torch.Tensor | None  # [heads]
    always_masked: bool  # causality is part of the mask, whatever the kernel can do itself


class Span(NamedTuple):
    """The part of a sequence that its queries see."""

    num_queries: int
    block_ids: Sequence[int]
    begin: int  # slot of the first visible key, counted from the first of these blocks
    end: int  # slot behind the last query's own key


def span_of(sequence: PagedSequence, window: int | None, block_size: int) -> Span:
    """The blocks that some query of the sequence sees, all of them without a window."""
    context_len = sequence.context_len
    first_key = 0
    if window is not None:
        first_key = max(context_len - sequence.num_queries + 1 - window, 0)
    first, last = first_key // block_size, -(-context_len // block_size)
    offset = first * block_size
    return Span(
        sequence.num_queries,
        sequence.block_ids[first:last],
        first_key - offset,
        context_len - offset,
    )


class Part(Protocol):
    """Queries that are computed by one call."""

    rows: slice

    def attend(self, query: torch.Tensor, layer_kv: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Outputs of the rows' queries, [rows, heads, head_dim], in the queries' shape."""
        ...


class Gather:
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


class Decodes:
    """One query each for a few sequences."""

    def __init__(
        self,
        shape: AttentionShape,
        rows: slice,
        gather: Gather,
        spans: Sequence[Span],
        sight: Sight,
    ) -> None:
        self.rows = rows
        self._gather = gather
        self._unused_slots: torch.Tensor | None = None
        num_groups = shape.num_heads // shape.num_kv_heads
        tokens = gather.tokens(len(spans), shape)
        begins = [span.begin for span in spans]
        ends = [span.end for span in spans]
        seen = slice(min(begins), max(ends))
        mask: torch.Tensor | None = None
        if len(spans) == 1:
            # Kv heads as batch: the output then lies in memory as the caller wants it.
            keys, values = tokens[:, 0, seen].transpose(1, 2).unsqueeze(2)
            head_shape = (shape.num_kv_heads, 1, num_groups)
            self._query_shape = (*head_shape, shape.head_dim)
        else:
            keys, values = tokens[:, :, seen].transpose(2, 3)
            head_shape = (1, shape.num_kv_heads, num_groups)
            self._query_shape = (len(spans), *head_shape[1:], shape.head_dim)
            if max(begins) > min(begins) or min(ends) < max(ends):
                mask = self._hide_unused(np.array([begins, ends]), tokens)[..., seen]
        if sight.alibi_slopes is not None:
            distances = np.arange(seen.start, seen.stop) - np.array(ends)[:, None] + 1
            biases = _biases(sight.alibi_slopes, head_shape, distances[:, None, None, :])
            mask = biases if mask is None else biases + mask
        self._visible = Visible(keys, values, mask, False, head_shape)

    def attend(self, query: torch.Tensor, layer_kv: torch.Tensor, attend: Attend) -> torch.Tensor:
        """See `Part`."""
        self._gather.read(layer_kv)
        if self._unused_slots is not None:
            self._slots.index_fill_(0, self._unused_slots, 0.0)
        return attend(query.view(self._query_shape), self._visible).reshape(query.shape)

    def _hide_unused(self, bounds: npt.NDArray[np.int64], tokens: torch.Tensor) -> torch.Tensor:
        """A mask of the slots outside each span, which are also zeroed: weight 0 does not undo a NaN."""
        begins, ends = bounds[:, :, None]
        numbers = np.arange(tokens.shape[2])
        unused = (numbers < begins) | (numbers >= ends)
        slots = np.flatnonzero(unused)
        self._slots = tokens.flatten(0, 2)
        self._unused_slots = torch.from_numpy(np.concatenate([slots, slots + unused.size]))
        mask = torch.from_numpy(unused[:, None, None, :])
        return torch.zeros(mask.shape, dtype=tokens.dtype).masked_fill_(mask, -math.inf)


class Chunk:
    """Several queries at the end of one sequence."""

    def __init__(
        self,
        shape: AttentionShape,
        rows: slice,
        gather: Gather,
        spans: Sequence[Span],
        sight: Sight,
    ) -> None:
        (span,) = spans
        self.rows = rows
        self._gather = gather
        num_groups = shape.num_heads // shape.num_kv_heads
        # Kv heads as batch; the heads of a group share their keys and values by a stride of 0.
        tokens = gather.tokens(1, shape)[:, 0, span.begin : span.end].transpose(1, 2).unsqueeze(2)
        keys, values = tokens.expand(-1, -1, num_groups, -1, -1)
        self._query_shape = (span.num_queries, shape.num_kv_heads, num_groups, shape.head_dim)
        head_shape = (shape.num_kv_heads, num_groups, 1)
        mask = _chunk_mask(span, sight, shape.dtype, head_shape)
        self._visible = Visible(keys, values, mask, mask is None, head_shape)

    def attend(self, query: torch.Tensor, layer_kv: torch.Tensor, attend: Attend) -> torch.Tensor:
        """See `Part`."""
        self._gather.read(layer_kv)
        output = attend(query.view(self._query_shape).permute(1, 2, 0, 3), self._visible)
        return output.permute(2, 0, 1, 3).reshape(query.shape).contiguous()


def _chunk_mask(
    span: Span, sight: Sight, dtype: torch.dtype, head_shape: tuple[int, int, int]
) -> torch.Tensor | None:
    """[queries, keys], with slopes for every head; None where plain causality says it all."""
    num_queries, num_keys = span.num_queries, span.end - span.begin
    num_earlier = num_keys - num_queries
    window, slopes = sight.sliding_window, sight.alibi_slopes
    is_cut = window is not None and window < num_keys
    if num_earlier == 0 and not is_cut and slopes is None and not sight.always_masked:
        return None
    future = torch.full((num_queries, num_keys), -math.inf, dtype=dtype)
    mask = future.triu_(num_earlier + 1)
    if window is not None and is_cut:
        mask += torch.full_like(mask, -math.inf).tril_(num_earlier - window)
    if slopes is None:
        return mask
    distances = np.arange(num_keys) - np.arange(num_earlier, num_keys)[:, None]
    return _biases(slopes, head_shape[:2], distances) + mask


def _biases(
    slopes: torch.Tensor, head_shape: Sequence[int], distances: npt.NDArray[np.int64]
) -> torch.Tensor:
    """ALiBi's biases, float32: slopes of the heads as `head_shape`, broadcast against distances."""
    per_head = slopes.float().view(*head_shape, *[1] * (4 - len(head_shape)))
    return per_head * torch.from_numpy(distances)
