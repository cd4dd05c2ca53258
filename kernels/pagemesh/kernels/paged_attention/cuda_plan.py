"""A step's work in memory of the device: planned anew, or filled into what a CUDA graph captured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.kernels.paged_attention.cuda_kernels import AttentionKernels, Launch
from pagemesh.kernels.paged_attention.interface import (
    AttentionShape,
    LayerAttention,
    PagedSequence,
    check_sequences,
    check_tables,
)
from pagemesh.kernels.paged_attention.reusable import check_capacity
from pagemesh.kernels.paged_attention.work import ITEM, MERGE, Sequences

_ALIGNMENT = 4  # int32 values: what begins at 16 bytes lets one compiled kernel serve all steps
_Values = npt.NDArray[np.int32]


def as_columns(
    shape: AttentionShape, sequences: Sequence[PagedSequence], num_padded: int = 0
) -> tuple[Sequences, _Values]:
    """Sequences, then padded ones of one query and no context; and all block tables behind each other.

    Raises ValueError for blocks that there are not.
    """
    num_queries = np.array([s.num_queries for s in sequences] + [1] * num_padded, np.int64)
    contexts = np.array([s.context_len for s in sequences] + [0] * num_padded, np.int64)
    num_blocks = -(-contexts // shape.block_size)
    used = (s.block_ids[:n] for s, n in zip(sequences, num_blocks.tolist(), strict=False))
    tables = np.fromiter(chain.from_iterable(used), np.int64, int(num_blocks.sum()))
    check_tables(tables, shape.num_blocks)
    first_tokens, first_tables = (np.cumsum(x) - x for x in (num_queries, num_blocks))
    return Sequences(num_queries, contexts, first_tokens, first_tables), tables.astype(np.int32)


class CudaPlan:
    """`AttentionPlan` of CUDA devices."""

    def __init__(
        self,
        kernels: AttentionKernels,
        sequences: Sequence[PagedSequence],
        windows: dict[int | None, None],
    ) -> None:
        """Prepare layers with these windows; those that turn out to be there too are added to them."""
        check_sequences(kernels.shape, sequences)
        self._kernels = kernels
        self._windows = windows
        self._sequences, tables = as_columns(kernels.shape, sequences)
        self._num_queries = int(self._sequences.num_queries.sum())
        self._launches: dict[int | None, list[Launch]] = {}
        self._tables = self._prepare(windows, tables)

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        """See `AttentionPlan`."""
        query = self._kernels.check(query, layer_kv, features, self._num_queries)
        window = features.sliding_window
        if window not in self._launches:
            self._windows[window] = None
            self._prepare([window], np.empty(0, np.int32))
        return self._kernels.start(self._launches[window], self._tables, query, layer_kv, features)

    def _prepare(
        self, windows: Sequence[int | None] | dict[int | None, None], tables: _Values
    ) -> torch.Tensor:
        """Bring the work for some windows and the tables to the device in one copy; gives the tables."""
        works = [
            (window, tile, work)
            for window in windows
            for tile, work in self._kernels.share(self._sequences, window)
        ]
        parts = [tables]
        for _, _, work in works:
            # Programs without items need not be started.
            parts += [np.unique(work.programs), work.items.ravel(), work.merges.ravel()]
        buffers = iter(_views(_copy(_joined(parts), self._kernels.device), parts))
        tables_there = next(buffers)
        for window, tile, work in works:
            programs, items, merges = next(buffers), next(buffers), next(buffers)
            rows_per_merge = int(work.merges[:, 2].max()) if len(work.merges) else 0
            launch = Launch(
                tile, programs, items, merges, len(programs) - 1, len(work.merges), rows_per_merge
            )
            self._launches.setdefault(window, []).append(launch)
        return tables_there


class CudaReusablePlan:
    """`ReusablePlan` of CUDA devices: its launches are always the same, what they read is filled in."""

    def __init__(
        self,
        kernels: AttentionKernels,
        max_num_seqs: int,
        max_num_blocks: int,
        layers: Sequence[LayerAttention],
    ) -> None:
        self._kernels = kernels
        self._capacity = max_num_seqs, max_num_blocks
        self._tile = kernels.tile_of_decodes()
        num_programs = kernels.num_programs(self._tile)
        pieces = -(-kernels.num_groups // self._tile.num_rows)
        num_tiles = max_num_seqs * kernels.shape.num_kv_heads * pieces
        num_merges = min(num_programs - 1, num_tiles)
        rows_per_merge = min(kernels.num_groups, self._tile.num_rows)
        windows = list(dict.fromkeys(layer.sliding_window for layer in layers))
        self._room: list[_Values] = []
        for _ in windows:
            sizes = (
                num_programs + 1,
                (num_tiles + num_programs) * len(ITEM),
                num_merges * len(MERGE),
            )
            self._room += [np.zeros(size, np.int32) for size in sizes]
        # Tables are last: only as much as is used is copied.
        room = [*self._room, np.zeros(max_num_blocks, np.int32)]
        self._buffer = torch.zeros(len(_joined(room)), dtype=torch.int32, device=kernels.device)
        views = iter(_views(self._buffer, room))
        self._launches: dict[int | None, Launch] = {}
        for window in windows:
            programs, items, merges = next(views), next(views), next(views)
            self._launches[window] = Launch(
                self._tile, programs, items, merges, num_programs, num_merges, rows_per_merge
            )
        self._tables = next(views)
        self.refill([])

    def refill(self, sequences: Sequence[PagedSequence]) -> None:
        """See `ReusablePlan`."""
        shape = self._kernels.shape
        check_capacity(shape, sequences, *self._capacity)
        columns, tables = as_columns(shape, sequences, self._capacity[0] - len(sequences))
        parts: list[_Values] = []
        for window in self._launches:
            work = self._kernels.share_tiles(self._tile, columns, window)
            parts += [work.programs, work.items.ravel(), work.merges.ravel()]
        for room, part in zip(self._room, parts, strict=True):
            room[: len(part)] = part
            room[len(part) :] = 0
        used = _joined([*self._room, tables])
        _copy(used, self._kernels.device, self._buffer[: len(used)])

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        """See `AttentionPlan`."""
        query = self._kernels.check(query, layer_kv, features, self._capacity[0])
        launch = self._launches.get(features.sliding_window)
        if launch is None:
            raise ValueError(f"the plan was made for no layer of window {features.sliding_window}")
        return self._kernels.start([launch], self._tables, query, layer_kv, features)


def _offsets(parts: Sequence[_Values]) -> Iterator[int]:
    """Where each part begins, and the end."""
    offset = 0
    for part in parts:
        yield offset
        offset += -(-len(part) // _ALIGNMENT) * _ALIGNMENT
    yield offset


def _joined(parts: Sequence[_Values]) -> _Values:
    *offsets, size = _offsets(parts)
    joined = np.zeros(size, np.int32)
    for offset, part in zip(offsets, parts, strict=True):
        joined[offset : offset + len(part)] = part
    return joined


def _views(buffer: torch.Tensor, parts: Sequence[_Values]) -> list[torch.Tensor]:
    offsets = _offsets(parts)
    return [
        buffer[offset : offset + len(part)] for offset, part in zip(offsets, parts, strict=False)
    ]


def _copy(
    values: _Values, device: torch.device, target: torch.Tensor | None = None
) -> torch.Tensor:
    """Bring values to the device, without waiting for it; into `target` where there is one."""
    source = torch.from_numpy(values)
    if device.type == "cuda":
        source = source.pin_memory()
    if target is None:
        return source.to(device, non_blocking=True)
    return target.copy_(source, non_blocking=True)
