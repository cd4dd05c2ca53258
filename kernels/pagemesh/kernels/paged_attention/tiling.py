"""Sizes of the tiles in which attention is computed on a kind of GPU. They settle the bits of a result."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pagemesh.kernels.paged_attention.interface import AttentionShape
from pagemesh.kernels.target import Target
from pagemesh.kernels.whole_numbers import next_power_of_2


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
