"""Moving blocks on the CPU, by torch's indexing and the checksum in numpy."""

from __future__ import annotations

import torch

from pagemesh.kernels.block_copy.interface import check_copy, check_move, check_sum
from pagemesh.kernels.block_copy.reference import checksum_of


class CpuBlockCopier:
    """`BlockCopier` of CPU tensors."""

    def gather(
        self, pool: torch.Tensor, block_ids: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        check_move(pool, block_ids, out)
        _gather(pool, block_ids, out)
        return _checksum(out)

    def scatter(
        self, source: torch.Tensor, pool: torch.Tensor, block_ids: torch.Tensor
    ) -> torch.Tensor:
        check_move(pool, block_ids, source)
        exists = _existing(pool, block_ids)
        pool[:, block_ids[exists]] = source[:, exists]
        return _checksum(source)

    def copy(
        self,
        source: torch.Tensor,
        source_ids: torch.Tensor,
        target: torch.Tensor,
        target_ids: torch.Tensor,
    ) -> None:
        _copy(source, source_ids, target, target_ids)

    def copy_and_sum(
        self,
        source: torch.Tensor,
        source_ids: torch.Tensor,
        target: torch.Tensor,
        target_ids: torch.Tensor,
    ) -> torch.Tensor:
        return _checksum(_copy(source, source_ids, target, target_ids))

    def sum(self, pool: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
        check_sum(pool, block_ids)
        return _checksum(_gathered(pool, block_ids))


def _copy(
    source: torch.Tensor, source_ids: torch.Tensor, target: torch.Tensor, target_ids: torch.Tensor
) -> torch.Tensor:
    """Copy blocks by way of a buffer, [planes, N, words], which is given back."""
    check_copy(source, source_ids, target, target_ids)
    exists = _existing(target, target_ids)
    blocks = _gathered(source, source_ids)
    target[:, target_ids[exists]] = blocks[:, exists]
    return blocks


def _gathered(pool: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    blocks = torch.empty(pool.shape[0], len(block_ids), pool.shape[2], dtype=torch.int64)
    _gather(pool, block_ids, blocks)
    return blocks


def _gather(pool: torch.Tensor, block_ids: torch.Tensor, out: torch.Tensor) -> None:
    exists = _existing(pool, block_ids)
    if exists.all():
        torch.index_select(pool, 1, block_ids, out=out)
    else:
        out[:, ~exists] = 0
        out[:, exists] = pool[:, block_ids[exists]]


def _existing(pool: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    return (block_ids >= 0) & (block_ids < pool.shape[1])


def _checksum(words: torch.Tensor) -> torch.Tensor:
    total = checksum_of(words.view(torch.uint8).numpy().reshape(-1))
    return torch.tensor([total - (total >> 63 << 64)])
