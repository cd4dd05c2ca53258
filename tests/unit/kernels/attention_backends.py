"""All implementations of paged attention, as functions that take and give tensors of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pagemesh.kernels.kv_scales import KvScales
from pagemesh.kernels.paged_attention import (
    AttentionPlan,
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedAttention,
    PagedSequence,
    ReusablePlan,
)
from pagemesh.kernels.paged_attention.cpu import CpuPagedAttention
from pagemesh.kernels.paged_attention.cuda import CudaPagedAttention
from pagemesh.kernels.paged_attention.cuda_kernels import RowTile, Tiling
from pagemesh.kernels.paged_attention.reference import ReferencePagedAttention
from tests.support.tolerances import float32_tolerance

Maker = Callable[[AttentionShape], PagedAttention]

# Contexts of a few dozen tokens have several segments, and chunks several tiles of either size.
SMALL_TILES = Tiling(16, 32, RowTile(16, 4, 2, 2), RowTile(32, 4, 2, 1), "ieee")


def make_triton(shape: AttentionShape, tiling: Tiling | None = SMALL_TILES) -> PagedAttention:
    """Triton's, in its interpreter where there is no GPU."""
    if not torch.cuda.is_available():
        return CudaPagedAttention(shape, torch.device("cpu"), tiling)
    # A GPU multiplies tiles of its own sizes only.
    return _OnGpu(CudaPagedAttention(shape, torch.device("cuda")))


def tolerance_of(make: Maker) -> float:
    """How far an implementation's float32 may be from the reference."""
    on_gpu = make is make_triton and torch.cuda.is_available()
    return float32_tolerance(torch.device("cuda" if on_gpu else "cpu"))


IMPLEMENTATIONS: list[Maker] = [ReferencePagedAttention, CpuPagedAttention, make_triton]


class _OnGpu:
    """`PagedAttention` that moves what it is given to the GPU and the results back."""

    def __init__(self, attention: CudaPagedAttention) -> None:
        self._attention = attention

    def plan(self, sequences: Sequence[PagedSequence]) -> AttentionPlan:
        return _PlanOnGpu(self._attention.plan(sequences))

    def make_reusable(self, capacity: Capacity, layers: Sequence[LayerAttention]) -> ReusablePlan:
        return _PlanOnGpu(self._attention.make_reusable(capacity, layers))


class _PlanOnGpu:
    def __init__(self, plan: AttentionPlan) -> None:
        self._plan = plan

    def refill(self, sequences: Sequence[PagedSequence]) -> None:
        self._plan.refill(sequences)  # type: ignore[attr-defined]

    def attend(
        self, query: torch.Tensor, layer_kv: torch.Tensor, features: LayerAttention
    ) -> torch.Tensor:
        scales = features.kv_scales
        there = LayerAttention(
            features.scale,
            features.sliding_window,
            features.soft_cap,
            None if features.sinks is None else features.sinks.cuda(),
            None if features.alibi_slopes is None else features.alibi_slopes.cuda(),
            None if scales is None else KvScales(scales.keys.cuda(), scales.values.cuda()),
        )
        return self._plan.attend(query.cuda(), layer_kv.cuda(), there).cpu()
