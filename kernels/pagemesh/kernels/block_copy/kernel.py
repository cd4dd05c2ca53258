"""Moving blocks in Triton: one program copies a part of one block in one plane, and sums it up."""

from __future__ import annotations

import triton
import triton.language as tl

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
