"""Paged attention on the CPU: a step's work as items for a kernel made for this processor."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.kernels.jit.compiled import CompiledFunction
from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa
from pagemesh.kernels.jit.parallel import run_parallel
from pagemesh.kernels.paged_attention.cpu_kernel import compile_attention
from pagemesh.kernels.paged_attention.cpu_tile import ARGUMENTS, ITEM, KernelShape, Multiplies
from pagemesh.kernels.paged_attention.interface import (
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedSequence,
    ReusablePlan,
    check_capacity,
    check_features,
    check_kv,
    check_query,
    check_sequences,
    check_shape,
    check_tables,
)
from pagemesh.kernels.paged_attention.reference import Replanned

# Pairs of a query head and a key from which on threads share them: below, waking the others takes as
# long as they save.
_MIN_SHARED_PAIRS = 1 << 12
_NO_WINDOW = 1 << 24
# An item without queries: the key at the begin of the first block is read, and nothing written.
_NO_QUERIES = [int(name == "end") for name in ITEM]
_Items = npt.NDArray[np.int64]
_Arguments = ctypes.c_int64 * len(ARGUMENTS)


class CpuPagedAttention:
    """`PagedAttention` for CPU tensors."""

    def __init__(self, shape: AttentionShape) -> None:
        check_shape(shape)
        self.shape = shape
        self._layers: dict[LayerAttention, _Layer] = {}
        kernel_shape = _kernel_shape(shape, caps=False)
        self.max_queries = kernel_shape.max_queries
        """Queries of one item."""
        self.num_keys = kernel_shape.num_keys
        """Keys of a tile."""

    def plan(self, sequences: Sequence[PagedSequence]) -> CpuPlan:
        check_sequences(self.shape, sequences)
        return CpuPlan(self, sequences)

    def make_reusable(self, capacity: Capacity, layers: Sequence[LayerAttention]) -> ReusablePlan:
        if capacity.longest > 1:
            # Steps with chunks are not recorded here.
            return Replanned(self, self.shape, capacity)
        windows = {self.layer(features).window for features in layers}
        return CpuReusablePlan(self, capacity, windows)

    def layer(self, features: LayerAttention) -> _Layer:
        """What the kernel is told about a layer with these features; compiled when first asked for."""
        layer = self._layers.get(features)
        if layer is None:
            check_features(self.shape, features)
            layer = self._layers[features] = _Layer(features, self.shape)
        return layer

    def attend(
        self,
        query: torch.Tensor,
        layer_kv: torch.Tensor,
        layer: _Layer,
        work: tuple[_Items, _Items],
        num_threads: int,
    ) -> torch.Tensor:
        """Attention of queries [T, heads, head_dim], by items and block tables; contiguous."""
        items, tables = work
        shape = self.shape
        check_kv(layer_kv, shape)
        if query.stride()[1:] != (shape.head_dim, 1):
            query = query.contiguous()
        output = torch.empty(query.shape, dtype=query.dtype)
        keys = layer_kv.data_ptr()
        arguments = _Arguments(
            0,
            len(items),
            items.ctypes.data,
            tables.ctypes.data,
            query.data_ptr(),
            query.stride(0),
            keys,
            keys + layer_kv.stride(0) * layer_kv.itemsize,
            output.data_ptr(),
            *layer.arguments,
        )
        run_parallel(layer.function, arguments, num_threads)
        return output


class _Layer:
    """The features of one layer as the kernel reads them."""

    def __init__(self, features: LayerAttention, shape: AttentionShape) -> None:
        self.function: CompiledFunction = compile_attention(
            _kernel_shape(shape, caps=features.soft_cap is not None)
        )
        self.window = features.sliding_window or _NO_WINDOW
        self._sinks = _per_head(features.sinks, shape, -math.inf)
        self._slopes = _per_head(features.alibi_slopes, shape, 0.0)
        # Kernels for KV without any read none.
        self._kv_scales = features.kv_scales or (torch.empty(0), torch.empty(0))
        self.arguments = (
            self._sinks.data_ptr(),
            self._slopes.data_ptr(),
            _float_bits(features.scale),
            _float_bits(features.soft_cap or 0.0),
            *(scales.data_ptr() for scales in self._kv_scales),
            self.window,
        )
        """The last of the kernel's arguments."""


class CpuPlan:
    """`AttentionPlan` of the CPU."""

    def __init__(self, attention: CpuPagedAttention, sequences: Sequence[PagedSequence]) -> None:
        self._attention = attention
        shape = attention.shape
        num_queries = np.array([sequence.num_queries for sequence in sequences])
        contexts = np.array([sequence.context_len for sequence in sequences])
        num_blocks = -(-contexts // shape.block_size)
        self._num_queries = int(num_queries.sum())
        num_pairs = int(num_queries @ contexts) * shape.num_heads
        self._is_shared = num_pairs >= _MIN_SHARED_PAIRS
        self.tables: _Items = np.array(
            [
                block_id
                for sequence, length in zip(sequences, num_blocks.tolist(), strict=True)
                for block_id in sequence.block_ids[:length]
            ],
            dtype=np.int64,
        )
        check_tables(self.tables, shape.num_blocks)
        self._pieces = _cut(num_queries, contexts, num_blocks, attention.max_queries)
        self._items: dict[int, _Items] = {}  # by window

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        check_query(query, self._attention.shape, self._num_queries)
        layer = self._attention.layer(features)
        # Asked anew for each layer: a step may get more or fewer threads while it is computed.
        num_threads = torch.get_num_threads() if self._is_shared else 1
        return self._attention.attend(
            query, layer_kv, layer, (self.items(layer.window), self.tables), num_threads
        )

    def items(self, window: int) -> _Items:
        """One item per piece and kv head, [items, 7]: see `cpu_tile.ITEM`."""
        items = self._items.get(window)
        if items is None:
            items = self._items[window] = self._make_items(window)
        return items

    def _make_items(self, window: int) -> _Items:
        """The longest first, so that threads end together."""
        num_heads = self._attention.shape.num_kv_heads
        rows, counts, positions, tables, contexts = np.repeat(self._pieces, num_heads, axis=1)
        heads = np.tile(np.arange(num_heads), self._pieces.shape[1])
        num_keys = self._attention.num_keys
        first_tiles = np.maximum(positions - window + 1, 0) // num_keys
        ends = positions + counts
        if not self._attention.shape.causal:
            ends = np.minimum(contexts, ends - 1 + window)
        items = np.stack([rows, counts, positions, heads, tables, first_tiles, ends], axis=1)
        work = counts * (ends - first_tiles * num_keys)
        return np.ascontiguousarray(items[np.argsort(-work, kind="stable")])


class CpuReusablePlan:
    """`ReusablePlan` of the CPU: what the kernel reads of it always lies in the same place."""

    def __init__(
        self,
        attention: CpuPagedAttention,
        capacity: Capacity,
        windows: Iterable[int],
    ) -> None:
        self._attention = attention
        self._capacity = capacity
        self._num_sequences = 0
        self._tables = np.zeros(capacity.num_blocks, np.int64)
        self._ids: list[int] = []
        """Those in the tables."""
        num_items = capacity.num_sequences * attention.shape.num_kv_heads
        self._items = {
            window: np.tile(np.array(_NO_QUERIES, np.int64), (num_items, 1)) for window in windows
        }
        self._heads = np.arange(attention.shape.num_kv_heads)

    def refill(self, sequences: Sequence[PagedSequence]) -> None:
        shape, number = self._attention.shape, len(sequences)
        check_capacity(shape, sequences, self._capacity)
        ids: list[int] = []
        places = []
        for row, (_, context, block_ids) in enumerate(sequences):
            places.append((row, len(ids), context))
            ids += block_ids[: -(-context // shape.block_size)]
        if ids != self._ids:
            # Most steps begin no block.
            self._ids = []
            tables = self._tables[: len(ids)]
            tables[:] = ids
            check_tables(tables, shape.num_blocks)
            self._ids = ids
        # Where contexts are in order, they ascend: threads end together when the longest come first.
        places.reverse()
        num_keys = self._attention.num_keys
        for window, items in self._items.items():
            by_head = items.reshape(-1, shape.num_kv_heads, len(ITEM))
            by_head[number : self._num_sequences] = _NO_QUERIES
            if number:
                # As of the first head: what other heads read differs in that alone.
                of_first = [
                    [(row, 1, context - 1, 0, table, max(context - window, 0) // num_keys, context)]
                    for row, table, context in places
                ]
                by_head[:number] = np.array(of_first)
                by_head[:number, :, ITEM.index("kv_head")] = self._heads
        self._num_sequences = number

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        check_query(query, self._attention.shape, self._capacity.num_sequences)
        layer = self._attention.layer(features)
        work = self._items[layer.window], self._tables
        output = self._attention.attend(query, layer_kv, layer, work, torch.get_num_threads())
        if self._num_sequences < self._capacity.num_sequences:
            output[self._num_sequences :] = 0
        return output


def _cut(
    num_queries: _Items, contexts: _Items, num_blocks: _Items, max_queries: int
) -> npt.NDArray[np.int64]:
    """Runs of at most `max_queries` queries of one sequence: rows as in `cpu_tile.ITEM`, [5, pieces].

    First row, number of queries, position of the first, begin of the block table, and the context.
    """
    first_rows, first_tables = (
        np.cumsum(lengths) - lengths for lengths in (num_queries, num_blocks)
    )
    first_positions = contexts - num_queries
    whole = np.stack([first_rows, num_queries, first_positions, first_tables, contexts])
    if int(num_queries.max()) <= max_queries:
        return whole
    num_pieces = -(-num_queries // max_queries)
    pieces = np.repeat(whole, num_pieces, axis=1)
    first_pieces = np.cumsum(num_pieces) - num_pieces
    begins = (np.arange(pieces.shape[1]) - np.repeat(first_pieces, num_pieces)) * max_queries
    pieces[0] += begins
    pieces[1] = np.minimum(max_queries, pieces[1] - begins)
    pieces[2] += begins
    return pieces


def _kernel_shape(shape: AttentionShape, caps: bool) -> KernelShape:
    dtype, stored = (str(each).removeprefix("torch.") for each in (shape.dtype, shape.stored))
    num_groups = shape.num_heads // shape.num_kv_heads
    return KernelShape(
        num_groups,
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_size,
        dtype,
        stored,
        caps,
        _multiplies(shape.dtype),
        shape.causal,
    )


def _multiplies(dtype: torch.dtype) -> Multiplies:
    isa = current_isa()
    if dtype != torch.bfloat16 or not isa.has_pair_dots:
        return Multiplies.FLOATS
    return Multiplies.AMX_TILES if isa == CpuIsa.AMX else Multiplies.PAIRS


def _float_bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def _per_head(values: torch.Tensor | None, shape: AttentionShape, default: float) -> torch.Tensor:
    if values is None:
        return torch.full((shape.num_heads,), default)
    return values.to(torch.float32).contiguous()
