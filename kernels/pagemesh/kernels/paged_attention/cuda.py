"""Paged attention on CUDA devices: a step's work goes to the device in one copy, a layer is one kernel or two.

The order in which a row's sums are computed depends on its position alone, see `kernel.py`: however many
programs share it and whatever else is in the batch, its bits are the same. A step's work is planned anew, or filled into
what a CUDA graph captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.kernels.paged_attention.cuda_kernels import (
    AttentionKernels,
    Kind,
    Launch,
    Tiling,
    tiling_of,
)
from pagemesh.kernels.paged_attention.interface import (
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedSequence,
    check_capacity,
    check_sequences,
    check_shape,
    check_tables,
)
from pagemesh.kernels.paged_attention.work import ITEM, MERGE, Sequences, Work
from pagemesh.kernels.target import NUM_COUNTERS, target_of

_ALIGNMENT = 4  # int32 values: what begins at 16 bytes lets one compiled kernel serve all steps
_Values = npt.NDArray[np.int32]
_NONE = np.zeros(0, np.int32)
_NO_WORK = Work(_NONE, _NONE, _NONE, 0)


def as_columns(
    shape: AttentionShape, sequences: Sequence[PagedSequence], padding: Sequence[int] = ()
) -> tuple[Sequences, _Values]:
    """Sequences, then padded ones of so many queries and no context; and all block tables behind each other.

    Raises ValueError for blocks that there are not.
    """
    num_queries = np.array([*(s.num_queries for s in sequences), *padding], np.int64)
    contexts = np.array([s.context_len for s in sequences] + [0] * len(padding), np.int64)
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
            (window, self._kernels.tile(kind), work)
            for window in windows
            for kind, work in self._kernels.share(self._sequences, window).items()
        ]
        parts = [tables]
        for _, _, work in works:
            # Programs without items need not be started.
            parts += [np.unique(work.programs), work.items.ravel(), work.merges.ravel()]
        buffers = iter(_views(_copy(_joined(parts), self._kernels.device), parts))
        tables_there = next(buffers)
        for window, tile, _ in works:
            programs, items, merges = next(buffers), next(buffers), next(buffers)
            launch = Launch(tile, programs, items, merges, len(programs) - 1)
            self._launches.setdefault(window, []).append(launch)
        return tables_there


class CudaReusablePlan:
    """`ReusablePlan` of CUDA devices: its launches are always the same, what they read is filled in."""

    def __init__(
        self, kernels: AttentionKernels, capacity: Capacity, layers: Sequence[LayerAttention]
    ) -> None:
        self._kernels = kernels
        self._capacity = capacity
        windows = list(dict.fromkeys(layer.sliding_window for layer in layers))
        most_tiles = kernels.most_tiles(capacity)
        self._room: list[_Values] = []
        for _ in windows:
            for kind, num_tiles in most_tiles.items():
                num_programs, num_merges = self._grids(kind, num_tiles)
                sizes = (
                    num_programs + 1,
                    (num_tiles + num_programs) * len(ITEM),
                    num_merges * len(MERGE),
                )
                self._room += [np.zeros(size, np.int32) for size in sizes]
        # Tables are last: only as much as is used is copied.
        room = [*self._room, np.zeros(capacity.num_blocks, np.int32)]
        self._buffer = torch.zeros(len(_joined(room)), dtype=torch.int32, device=kernels.device)
        views = iter(_views(self._buffer, room))
        self._launches: dict[int | None, dict[Kind, Launch]] = {}
        for window in windows:
            launches = self._launches[window] = {}
            for kind, num_tiles in most_tiles.items():
                programs, items, merges = next(views), next(views), next(views)
                num_programs, _ = self._grids(kind, num_tiles)
                tile = kernels.tile(kind)
                launches[kind] = Launch(tile, programs, items, merges, num_programs)
        self._tables = next(views)
        self.refill([])

    def refill(self, sequences: Sequence[PagedSequence]) -> None:
        shape, capacity = self._kernels.shape, self._capacity
        check_capacity(shape, sequences, capacity)
        num_padded = capacity.num_queries - sum(sequence.num_queries for sequence in sequences)
        whole, rest = divmod(num_padded, capacity.longest)
        padding = [capacity.longest] * whole + [rest] * (rest > 0)
        columns, tables = as_columns(shape, sequences, padding)
        parts: list[_Values] = []
        for window, launches in self._launches.items():
            works = self._kernels.share(columns, window)
            for kind in launches:
                work = works.get(kind, _NO_WORK)
                parts += [work.programs, work.items.ravel(), work.merges.ravel()]
        for room, part in zip(self._room, parts, strict=True):
            room[: len(part)] = part
            room[len(part) :] = 0
        used = _joined([*self._room, tables])
        _copy(used, self._kernels.device, self._buffer[: len(used)])

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        query = self._kernels.check(query, layer_kv, features, self._capacity.num_queries)
        launches = self._launches.get(features.sliding_window)
        if launches is None:
            raise ValueError(f"the plan was made for no layer of window {features.sliding_window}")
        return self._kernels.start(list(launches.values()), self._tables, query, layer_kv, features)

    def _grids(self, kind: Kind, num_tiles: int) -> tuple[int, int]:
        """Programs, and the most merges of their sums."""
        num_programs = self._kernels.num_programs(self._kernels.tile(kind))
        return num_programs, min(num_programs - 1, num_tiles, NUM_COUNTERS)


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


class CudaPagedAttention:
    """`PagedAttention` of CUDA tensors; its memory between two passes is shared by all its plans."""

    def __init__(
        self, shape: AttentionShape, device: torch.device, tiling: Tiling | None = None
    ) -> None:
        check_shape(shape)
        if shape.stored == torch.int8:
            raise ValueError(f"keys and values in {shape.stored} are for CPUs")
        target = target_of(device)
        if shape.stored != shape.dtype and target.capability < 89:
            raise ValueError(
                f"keys and values in {shape.stored} need compute capability 8.9, this GPU has"
                f" {target.capability / 10}"
            )
        self._kernels = AttentionKernels(shape, device, target, tiling or tiling_of(shape, target))
        self._windows: dict[int | None, None] = {}  # of all layers seen so far, in their order

    def plan(self, sequences: Sequence[PagedSequence]) -> CudaPlan:
        return CudaPlan(self._kernels, sequences, self._windows)

    def make_reusable(
        self, capacity: Capacity, layers: Sequence[LayerAttention]
    ) -> CudaReusablePlan:
        return CudaReusablePlan(self._kernels, capacity, layers)
