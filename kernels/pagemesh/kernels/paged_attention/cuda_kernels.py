"""One model's attention kernels: sizes of their tiles, how a batch's work is shared among programs, how they are started."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagemesh.kernels.launch import BoundKernel, dot_type, next_power_of_2
from pagemesh.kernels.paged_attention.interface import (
    AttentionShape,
    Capacity,
    LayerAttention,
    check_features,
    check_kv,
    check_query,
)
from pagemesh.kernels.paged_attention.kernel import attention_kernel
from pagemesh.kernels.paged_attention.work import Room, Sequences, Tiles, Work, share_work
from pagemesh.kernels.target import NUM_COUNTERS, Target, arrival_counters


class RowTile(NamedTuple):
    """How one program computes rows; the bits of a row are the same in each of a tiling's."""

    num_rows: int
    num_warps: int
    num_stages: int
    programs_per_multiprocessor: int


class Tiling(NamedTuple):
    """The sizes for one model."""

    num_keys: int
    """Of a tile."""

    segment_keys: int
    """Keys after which sums begin anew, a multiple of `num_keys`."""

    few: RowTile
    """For sequences with few rows, decodes above all."""

    many: RowTile
    """For all others."""

    precision: str
    """How products of float32 are computed, as `tl.dot` calls it."""


SEGMENT_KEYS = 512
"""Shorter ones share short contexts among more programs, and cost prompts and long contexts more than that
gains; an H200 measured it, see docs/decisions."""


def tiling_of(shape: AttentionShape, target: Target) -> Tiling:
    """Tiles that fit the registers and the shared memory; see docs/decisions for how they were chosen."""
    width = next_power_of_2(shape.head_dim)
    if shape.dtype == torch.float32:
        # No matrix units: they would round to TF32.
        tile = RowTile(16, 4, 3, 2)
        return Tiling(32, SEGMENT_KEYS, tile, tile, "ieee")
    if 100 <= target.capability < 120:
        # Rows lie across warps there: only tiles of one size add up in the same order.
        tile = RowTile(64, 8, 3 if width <= 128 else 1, 1)
        return Tiling(64, SEGMENT_KEYS, tile, tile, "tf32")
    if width > 128:
        tile = RowTile(64, 8, 3, 1)
        # Three stages of 32 keys are a little more than the smaller GPUs have.
        num_keys = 32 if target.shared_bytes > 128 * 1024 else 16
        return Tiling(num_keys, SEGMENT_KEYS, tile, tile, "tf32")
    # Each warp has 16 rows of its own in both, so both use the same instructions in the same order.
    few, many = RowTile(64, 4, 3, 2), RowTile(128, 8, 3, 1)
    if 90 <= target.capability < 100:
        return Tiling(64, SEGMENT_KEYS, few, many, "tf32")
    # Others, desktop Blackwells too, keep the queries in registers; models without groups are those whose
    # slopes take some as well.
    num_keys = 16 if width == 128 and shape.num_heads == shape.num_kv_heads else 32
    return Tiling(num_keys, SEGMENT_KEYS, few, many, "tf32")


# Memory for the sums of segments that several programs share. Rows for which there is no room are not
# shared.
_PARTIAL_BYTES = 64 << 20
# Of sums that a thread reads side by side; with 128 some kernels spill.
_MERGED_VALUES = 64
_LOG2_E = math.log2(math.e)


class Kind(enum.Enum):
    """Of sequences, by their rows: queries times the heads that share a kv head."""

    FEW = enum.auto()
    """Decodes above all."""
    MANY = enum.auto()


class Launch(NamedTuple):
    """What to start for one size of row tiles; int32 in memory of the device, see `Work`."""

    tile: RowTile
    programs: torch.Tensor
    items: torch.Tensor
    merges: torch.Tensor
    num_programs: int


class AttentionKernels:
    """Shares work, starts kernels, and owns the memory between the two passes."""

    def __init__(
        self, shape: AttentionShape, device: torch.device, target: Target, tiling: Tiling
    ) -> None:
        self.shape = shape
        self.device = device
        self.tiling = tiling
        self.num_groups = shape.num_heads // shape.num_kv_heads
        """Query heads that share a kv head."""
        self._num_multiprocessors = target.num_multiprocessors
        self._segment_tiles = tiling.segment_keys // tiling.num_keys
        num_rows = shape.num_heads * shape.num_blocks * shape.block_size
        self._num_partial_rows = min(_PARTIAL_BYTES // (4 * (shape.head_dim + 2)), num_rows)
        partials, statistics = (
            torch.empty(self._num_partial_rows, size, dtype=torch.float32, device=device)
            for size in (shape.head_dim, 2)
        )
        self._width = max(next_power_of_2(shape.head_dim), 16)
        self._bound: dict[tuple[RowTile, LayerAttention], BoundKernel] = {}
        self._constants: dict[str, object] = {
            "partials": partials,
            "statistics": statistics,
            "GROUP": self.num_groups,
            "KV_HEADS": shape.num_kv_heads,
            "HEAD_DIM": shape.head_dim,
            "WIDTH": self._width,
            "BLOCK_SIZE": shape.block_size,
            "BLOCK_KEYS": tiling.num_keys,
            "SEGMENT_TILES": self._segment_tiles,
            "CAUSAL": shape.causal,
            "DOT": dot_type(shape.dtype),
            "PRECISION": tiling.precision,
        }

    def num_programs(self, tile: RowTile) -> int:
        """Those that run side by side."""
        return self._num_multiprocessors * tile.programs_per_multiprocessor

    def tile(self, kind: Kind) -> RowTile:
        """The row tiles of a kind of sequences."""
        return self.tiling.few if kind is Kind.FEW else self.tiling.many

    def most_tiles(self, capacity: Capacity) -> dict[Kind, int]:
        """Of each kind of sequences that a batch may have, the long ones first: how many row tiles at most."""
        few, many = self.tiling.few, self.tiling.many
        num_queries, num_kv_heads = capacity.num_queries, self.shape.num_kv_heads
        # Queries that nobody asks for are one sequence more, see `CudaReusablePlan`.
        num_sequences = min(capacity.num_sequences + 1, num_queries)
        most_few = few.num_rows // self.num_groups
        found = {}
        if capacity.longest > most_few:
            # Each sequence may have a tile that is not full.
            num_sequences_of_many = min(num_sequences, num_queries // (most_few + 1))
            num_full = num_queries * self.num_groups // many.num_rows
            found[Kind.MANY] = (num_full + num_sequences_of_many) * num_kv_heads
        if most_few:
            found[Kind.FEW] = num_sequences * num_kv_heads
        return found

    def share(self, sequences: Sequences, window: int | None) -> dict[Kind, Work]:
        """The work of a batch, for each kind of sequences that are there; the long ones first."""
        is_few = sequences.num_queries * self.num_groups <= self.tiling.few.num_rows
        works: dict[Kind, Work] = {}
        num_used = 0
        for kind, is_chosen in ((Kind.MANY, ~is_few), (Kind.FEW, is_few)):
            if is_chosen.any():
                chosen = Sequences(*(column[is_chosen] for column in sequences))
                work = works[kind] = self._share_tiles(self.tile(kind), chosen, window, num_used)
                num_used += work.num_partial_rows
        return works

    def _share_tiles(
        self, tile: RowTile, sequences: Sequences, window: int | None, num_used: int
    ) -> Work:
        """The work of sequences that all have row tiles of one size."""
        tiles = Tiles(
            tile.num_rows,
            self.tiling.num_keys,
            self._segment_tiles,
            self.num_groups,
            self.shape.num_kv_heads,
            self.shape.causal,
        )
        room = Room(self._num_partial_rows - num_used, NUM_COUNTERS, num_used)
        return share_work(tiles, sequences, window, self.num_programs(tile), room)

    def start(
        self,
        launches: Sequence[Launch],
        tables: torch.Tensor,
        query: torch.Tensor,
        layer_kv: torch.Tensor,
        features: LayerAttention,
    ) -> torch.Tensor:
        """Start the kernels; gives their output. What they are given was checked."""
        output = query.new_empty(*query.shape)
        arguments = {
            "tables": tables,
            "query": query,
            "query_stride": query.stride(0),
            "layer_kv": layer_kv,
            "value_offset": layer_kv.stride(0),
            "output": output,
            "counters": arrival_counters(self.device),
        }
        for tile, programs, items, merges, num_programs in launches:
            own = {"programs": programs, "items": items, "merges": merges}
            self._kernel(tile, features).start((num_programs,), arguments | own)
        return output

    def _kernel(self, tile: RowTile, features: LayerAttention) -> BoundKernel:
        """For layers that attend so."""
        found = self._bound.get((tile, features))
        if found is None:
            found = self._bound[tile, features] = self._bind(tile, features)
        return found

    def _bind(self, tile: RowTile, features: LayerAttention) -> BoundKernel:
        scales = features.kv_scales
        fixed = {
            "window": features.sliding_window,
            "sinks": features.sinks,
            "key_scales": None if scales is None else scales.keys,
            "value_scales": None if scales is None else scales.values,
            "BLOCK_ROWS": tile.num_rows,
            "MERGED_ROWS": self._merged_rows(tile),
            "MERGED_AT_ONCE": self._merged_at_once(tile),
        }
        return BoundKernel(
            attention_kernel,
            self._constants | _logits(features) | fixed,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            overlaps=True,
        )

    def _merged_rows(self, tile: RowTile) -> int:
        """Rows that are merged side by side: in tiles of decodes those of one query."""
        few, many = self.tiling.few, self.tiling.many
        rows = 16
        if tile != few:
            rows = 32
        elif tile != many:
            rows = min(max(next_power_of_2(self.num_groups), tile.num_warps), rows)
        return min(rows, tile.num_rows)

    def _merged_at_once(self, tile: RowTile) -> int:
        """Sums of each row that are read side by side, as many as there are registers for."""
        values = self._merged_rows(tile) * self._width // (32 * tile.num_warps)
        return max(1, min(32, _MERGED_VALUES // max(values, 1)))

    def check(
        self,
        query: torch.Tensor,
        layer_kv: torch.Tensor,
        features: LayerAttention,
        num_queries: int,
    ) -> torch.Tensor:
        """The query as kernels take it; ValueError for what the plan was not made for."""
        check_query(query, self.shape, num_queries)
        check_kv(layer_kv, self.shape)
        check_features(self.shape, features)
        for name, tensor in (("query", query), ("KV", layer_kv)):
            if tensor.device.type != self.device.type:
                raise ValueError(
                    f"the {name} {list(tensor.shape)} is on {tensor.device}, but must be on"
                    f" {self.device}"
                )
        return query if query.stride()[1:] == (self.shape.head_dim, 1) else query.contiguous()


def _logits(features: LayerAttention) -> dict[str, object]:
    """How products of queries and keys become logits, as the kernel is told."""
    scale, soft_cap = features.scale * _LOG2_E, None
    if features.soft_cap is not None:
        scale, soft_cap = 2 * scale / features.soft_cap, features.soft_cap * _LOG2_E
    return {"factor": scale, "soft_cap": soft_cap, "slopes": features.alibi_slopes}
