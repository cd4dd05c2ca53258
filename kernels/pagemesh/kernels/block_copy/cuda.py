"""Moving blocks on CUDA devices: every byte is read once and written once, and summed up on the way."""

from __future__ import annotations

import torch

from pagemesh.kernels.block_copy.interface import check_copy, check_move, check_sum
from pagemesh.kernels.block_copy.kernel import copy_blocks_kernel
from pagemesh.kernels.launch import launch
from pagemesh.kernels.whole_numbers import cdiv, next_power_of_2

_UNIT = 16  # words: what begins at a multiple of them is read and written 16 bytes at a time
_MAX_WORDS = 1024  # of a program: with 4 warps, four accesses of 16 bytes for each thread


class CudaBlockCopier:
    """`BlockCopier` of CUDA tensors, and of pinned memory of the host that the device can read."""

    def gather(
        self, pool: torch.Tensor, block_ids: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        check_move(pool, block_ids, out)
        return _move(pool, block_ids, out, None, len(block_ids), sums=True)

    def scatter(
        self, source: torch.Tensor, pool: torch.Tensor, block_ids: torch.Tensor
    ) -> torch.Tensor:
        check_move(pool, block_ids, source)
        return _move(source, None, pool, block_ids, len(block_ids), sums=True)

    def copy(
        self,
        source: torch.Tensor,
        source_ids: torch.Tensor,
        target: torch.Tensor,
        target_ids: torch.Tensor,
    ) -> None:
        check_copy(source, source_ids, target, target_ids)
        _move(source, source_ids, target, target_ids, len(source_ids), sums=False)

    def copy_and_sum(
        self,
        source: torch.Tensor,
        source_ids: torch.Tensor,
        target: torch.Tensor,
        target_ids: torch.Tensor,
    ) -> torch.Tensor:
        check_copy(source, source_ids, target, target_ids)
        return _move(source, source_ids, target, target_ids, len(source_ids), sums=True)

    def sum(self, pool: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
        check_sum(pool, block_ids)
        return _move(pool, block_ids, None, None, len(block_ids), sums=True)


def _move(
    source: torch.Tensor,
    source_ids: torch.Tensor | None,
    target: torch.Tensor | None,
    target_ids: torch.Tensor | None,
    num_blocks: int,
    *,
    sums: bool,
) -> torch.Tensor:
    """Start the kernel; gives the checksum, 0 where none is asked for."""
    num_planes, _, num_words = source.shape
    block = min(next_power_of_2(num_words), _MAX_WORDS)
    grid = cdiv(num_words, block), num_blocks, num_planes
    ids = source_ids if source_ids is not None else target_ids
    device = source.device if ids is None else ids.device
    planes = source.stride(0), 0 if target is None else target.stride(0)
    unit = _UNIT if all(size % _UNIT == 0 for size in (num_words, *planes)) else 1
    parts = torch.zeros(grid[::-1] if sums else 0, dtype=torch.int64, device=device)
    launch(
        copy_blocks_kernel,
        grid,
        {
            "source": source,
            "source_plane": planes[0] // unit,
            "source_block": source.stride(1),
            "source_ids": source_ids,
            "source_blocks": source.shape[1],
            "target": target,
            "target_plane": planes[1] // unit,
            "target_block": 0 if target is None else target.stride(1),
            "target_ids": target_ids,
            "target_blocks": 0 if target is None else target.shape[1],
            "num_words": num_words,
            "sums": parts if sums else None,
            "UNIT": unit,
            "BLOCK": block,
        },
        num_warps=max(1, min(block // 256, 4)),
    )
    return parts.sum().view(1)
