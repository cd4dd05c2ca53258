"""Attention of a mixed batch, decodes and chunks of prompts, over paged KV; causal or not.

`make_paged_attention` chooses the implementation once, when a runner is built; all of them pass the
same tests.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.dispatch import backend_for
from pagemesh.kernels.paged_attention.interface import (
    AttentionPlan,
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedAttention,
    PagedSequence,
    ReusablePlan,
)
from pagemesh.kernels.paged_attention.reference import ReferencePagedAttention

__all__ = [
    "AttentionPlan",
    "AttentionShape",
    "Capacity",
    "LayerAttention",
    "PagedAttention",
    "PagedSequence",
    "ReusablePlan",
    "make_paged_attention",
]


def make_paged_attention(shape: AttentionShape, device: torch.device) -> PagedAttention:
    """The implementation for a device; ValueError when there is none, or none for such a shape."""
    match backend_for("paged_attention", device):
        case "cpu":
            from pagemesh.kernels.paged_attention.cpu import CpuPagedAttention

            return CpuPagedAttention(shape)
        case "cuda":
            from pagemesh.kernels.paged_attention.cuda import CudaPagedAttention

            return CudaPagedAttention(shape, device)
        case "reference":
            return ReferencePagedAttention(shape)
