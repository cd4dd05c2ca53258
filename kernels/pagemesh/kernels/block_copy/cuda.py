"""Moving blocks on CUDA devices: one program copies a part of one block in one plane, and sums it up on the way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagemesh.kernels.block_copy.interface import check_copy, check_move, check_sum
from pagemesh.kernels.launch import cdiv, launch, next_power_of_2

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


PLACE = tl.constexpr(0x9E3779B97F4A7C15)
FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _mix(words, places):
    """Words with their places in the payload, see `checksum_of`."""
    mixed = (places + 1).to(tl.uint64) * tl.full([1], PLACE, tl.uint64)
    mixed ^= words.to(tl.uint64, bitcast=True)
    mixed = (mixed ^ (mixed >> 30)) * tl.full([1], FIRST, tl.uint64)
    mixed = (mixed ^ (mixed >> 27)) * tl.full([1], SECOND, tl.uint64)
    return (mixed ^ (mixed >> 31)).to(tl.int64, bitcast=True)


@triton.jit(
    do_not_specialize=["source_plane", "source_blocks", "target_plane", "target_blocks"],
)
def copy_blocks_kernel(
    source,  # int64 [planes, source_blocks, num_words], of which the words lie densely; as `target`
    source_plane: tl.int64,  # of UNIT words, so that pools of any number of blocks have one kernel
    source_block,
    source_ids,  # int64 [N]; None: the blocks in their order, as `target_ids`
    source_blocks,
    target,  # None: nothing is written
    target_plane: tl.int64,
    target_block,
    target_ids,
    target_blocks,
    num_words,
    sums,  # int64 [planes, N, parts of a block]; None: no checksum
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Blocks that are no source's are zeros; those that are no target's are not written."""
    part, number, plane = (
        tl.program_id(0),
        tl.program_id(1).to(tl.int64),
        tl.program_id(2).to(tl.int64),
    )
    source_id, target_id = number, number
    if source_ids is not None:
        source_id = tl.load(source_ids + number)
    if target_ids is not None:
        target_id = tl.load(target_ids + number)
    places = part * BLOCK + tl.arange(0, BLOCK)
    is_word = places < num_words
    is_source = (source_id >= 0) & (source_id < source_blocks)
    is_target = (target_id >= 0) & (target_id < target_blocks)
    begin = source + plane * (source_plane * UNIT) + source_id * source_block
    words = tl.load(begin + places, mask=is_word & is_source, other=0)
    if target is not None:
        end = target + plane * (target_plane * UNIT) + target_id * target_block
        tl.store(end + places, words, mask=is_word & is_target)
    if sums is not None:
        block = plane * tl.num_programs(1) + number
        mixed = tl.where(is_word, _mix(words, block * num_words + places), 0)
        tl.store(sums + block * tl.num_programs(0) + part, tl.sum(mixed, axis=0))
