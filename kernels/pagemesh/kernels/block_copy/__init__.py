"""Gathers, scatters and copies whole KV blocks, with a checksum computed on the way.

`make_block_copier` chooses the implementation once; all pass the same tests.
"""

from __future__ import annotations

import torch

from pagemesh.kernels.block_copy.cpu import CpuBlockCopier
from pagemesh.kernels.block_copy.interface import BlockCopier, check_pairs
from pagemesh.kernels.block_copy.reference import ReferenceBlockCopier, checksum_of
from pagemesh.kernels.dispatch import backend_for

__all__ = ["BlockCopier", "check_pairs", "checksum_of", "make_block_copier"]


def make_block_copier(device: torch.device) -> BlockCopier:
    """The implementation for a device; ValueError when there is none."""
    match backend_for("block_copy", device):
        case "cpu":
            return CpuBlockCopier()
        case "cuda":
            from pagemesh.kernels.block_copy.cuda import CudaBlockCopier

            return CudaBlockCopier()
        case "reference":
            return ReferenceBlockCopier()
