"""The plain definition: one block after the other, one word after the other."""

from __future__ import annotations

import torch

from pagemesh.kernels.block_copy.checksum import FIRST, PLACE, SECOND
from pagemesh.kernels.block_copy.interface import check_copy, check_move, check_sum

_MASK = 0xFFFFFFFFFFFFFFFF


class ReferenceBlockCopier:
    """`BlockCopier` to compare others with."""

    def gather(
        self, pool: torch.Tensor, block_ids: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        check_move(pool, block_ids, out)
        for place, block_id in enumerate(block_ids.tolist()):
            exists = 0 <= block_id < pool.shape[1]
            out[:, place] = pool[:, block_id] if exists else 0
        return _checksum(out)

    def scatter(
        self, source: torch.Tensor, pool: torch.Tensor, block_ids: torch.Tensor
    ) -> torch.Tensor:
        check_move(pool, block_ids, source)
        for place, block_id in enumerate(block_ids.tolist()):
            if 0 <= block_id < pool.shape[1]:
                pool[:, block_id] = source[:, place]
        return _checksum(source)

    def copy(
        self,
        source: torch.Tensor,
        source_ids: torch.Tensor,
        target: torch.Tensor,
        target_ids: torch.Tensor,
    ) -> None:
        self.copy_and_sum(source, source_ids, target, target_ids)

    def copy_and_sum(
        self,
        source: torch.Tensor,
        source_ids: torch.Tensor,
        target: torch.Tensor,
        target_ids: torch.Tensor,
    ) -> torch.Tensor:
        check_copy(source, source_ids, target, target_ids)
        blocks = torch.zeros(source.shape[0], len(source_ids), source.shape[2], dtype=torch.int64)
        for place, block_id in enumerate(source_ids.tolist()):
            if 0 <= block_id < source.shape[1]:
                blocks[:, place] = source[:, block_id]
        for place, block_id in enumerate(target_ids.tolist()):
            if 0 <= block_id < target.shape[1]:
                target[:, block_id] = blocks[:, place]
        return _checksum(blocks)

    def sum(self, pool: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
        check_sum(pool, block_ids)
        out = torch.empty(pool.shape[0], len(block_ids), pool.shape[2], dtype=torch.int64)
        return self.gather(pool.contiguous(), block_ids, out)


def _checksum(words: torch.Tensor) -> torch.Tensor:
    total = 0
    for place, word in enumerate(words.flatten().tolist()):
        mixed = (word ^ (place + 1) * PLACE) & _MASK
        mixed = (mixed ^ mixed >> 30) * FIRST & _MASK
        mixed = (mixed ^ mixed >> 27) * SECOND & _MASK
        total += mixed ^ mixed >> 31
    total &= _MASK
    return torch.tensor([total - (total >> 63 << 64)])
