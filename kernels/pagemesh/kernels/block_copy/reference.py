"""The plain definition: one block after the other, one word after the other; and what their checksum is.

It is computed in any order, so that many programs can while they copy. Each word of eight bytes is mixed with its place
by the finalizer of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"), and the
results are added modulo 2^64, as in the incremental hashes of Bellare and Micciancio (1997). What it detects is in
docs/decisions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.kernels.block_copy.interface import check_copy, check_move, check_sum

PLACE: Final = 0x9E3779B97F4A7C15
FIRST: Final = 0xBF58476D1CE4E5B9
SECOND: Final = 0x94D049BB133111EB
WORD_BYTES: Final = 8

_WORDS_AT_ONCE: Final = 1 << 16  # that stay in a core's second-level cache


def checksum_of(payload: bytes | memoryview | npt.NDArray[np.uint8], first_word: int = 0) -> int:
    """The checksum of bytes that begin at some word of a payload; parts add up, modulo 2^64.

    ValueError unless they are whole words of eight bytes.
    """
    data = np.frombuffer(payload, np.uint8)
    if len(data) % WORD_BYTES:
        raise ValueError(f"{len(data)} bytes are not whole words of {WORD_BYTES}")
    words = data.view("<u8")
    total = 0
    for begin in range(0, len(words), _WORDS_AT_ONCE):
        part = words[begin : begin + _WORDS_AT_ONCE]
        begins_at = np.uint64(first_word + begin + 1)
        mixed = (np.arange(len(part), dtype=np.uint64) + begins_at) * np.uint64(PLACE)
        mixed ^= part
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(FIRST)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(SECOND)
        mixed ^= mixed >> np.uint64(31)
        total += int(mixed.sum(dtype=np.uint64))
    return total & 0xFFFFFFFFFFFFFFFF


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
