"""Paged attention on CUDA devices: a step's work goes to the device in one copy, a layer is one kernel or two.

The order in which a row's sums are computed depends on its position alone, see `kernel.py`: however many
programs share it and whatever else is in the batch, its bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemesh.kernels.paged_attention.cuda_kernels import AttentionKernels
from pagemesh.kernels.paged_attention.cuda_plan import CudaPlan, CudaReusablePlan
from pagemesh.kernels.paged_attention.interface import (
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedSequence,
    check_shape,
)
from pagemesh.kernels.paged_attention.tiling import Tiling, tiling_of
from pagemesh.kernels.target import target_of


class CudaPagedAttention:
    """`PagedAttention` of CUDA tensors; its memory between two passes is shared by all its plans."""

    def __init__(
        self, shape: AttentionShape, device: torch.device, tiling: Tiling | None = None
    ) -> None:
        check_shape(shape)
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
