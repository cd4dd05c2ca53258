"""Attention of a mixed batch, decodes and chunks of prompts, over paged KV; causal or not.

`make_paged_attention` chooses the implementation once, when a runner is built; all of them pass the
same tests.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.paged_attention.cpu import CpuPagedAttention
from pagemesh.kernels.paged_attention.interface import (
    AttentionPlan,
    AttentionShape,
    LayerAttention,
    PagedAttention,
    PagedSequence,
)

__all__ = [
    "AttentionPlan",
    "AttentionShape",
    "LayerAttention",
    "PagedAttention",
    "PagedSequence",
    "make_paged_attention",
]


def make_paged_attention(shape: AttentionShape, device: torch.device) -> PagedAttention:
    """The implementation for a device; ValueError when there is none."""
    if device.type != "cpu":
        raise ValueError(f"there is no paged attention for {device.type} devices")
    return CpuPagedAttention(shape)
