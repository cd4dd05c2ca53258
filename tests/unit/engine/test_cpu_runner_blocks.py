"""Whole blocks are copied over all layers, keys and values, in the order that batches promise."""

from __future__ import annotations

import numpy as np
import pytest

from pagemesh.core.kv import KvLayout
from pagemesh.engine.cpu_runner import BlockMover
from pagemesh.errors import ConfigError
from pagemesh.kv_memory.memory import KvMemory
from pagemesh.scheduler.batch import BlockMoves

LAYOUT = KvLayout.uniform(block_size=3, num_layers=2, num_kv_heads=1, head_dim=5, dtype="bfloat16")


def make_kv(num_blocks: int = 5) -> KvMemory:
    """Every byte tells its layer, its half and its block."""
    kv = KvMemory(LAYOUT, num_blocks)
    for layer in range(2):
        for half in range(2):
            for block in range(num_blocks):
                kv.bytes[layer, half, block] = 100 * layer + 50 * half + block + 1
    return kv


def blocks(kv: KvMemory) -> list[int]:
    """Which block's content lies where; fails unless all layers and halves agree."""
    first = kv.bytes[0, 0, :, 0].astype(int)
    for layer in range(2):
        for half in range(2):
            offset = np.where(first > 0, 100 * layer + 50 * half, 0)
            assert (kv.bytes[layer, half] == (first + offset)[:, None]).all()
    return [int(value) - 1 for value in first]


def test_blocks_are_copied_as_if_all_were_read_first() -> None:
    kv = make_kv()
    BlockMover(kv, 0).move(BlockMoves(copies=((0, 3), (0, 4), (2, 1))))
    assert blocks(kv) == [0, 2, 2, 0, 0]


def test_swapped_blocks_come_back_to_other_places() -> None:
    kv = make_kv()
    mover = BlockMover(kv, 3)
    mover.move(BlockMoves(swap_outs=((1, 2), (4, 0))))
    kv.bytes[:] = 0
    mover.move(BlockMoves(swap_ins=((2, 0), (0, 3))))
    assert blocks(kv) == [1, -1, -1, 4, -1]


def test_swap_outs_come_before_swap_ins_and_those_before_copies() -> None:
    kv = make_kv()
    mover = BlockMover(kv, 2)
    mover.move(BlockMoves(swap_outs=((4, 1),)))
    # Block 0 makes room for what was in block 4, of which block 1 then gets a copy.
    mover.move(BlockMoves(swap_outs=((0, 0),), swap_ins=((1, 0),), copies=((0, 1),)))
    assert blocks(kv) == [4, 4, 2, 3, 4]
    mover.move(BlockMoves(swap_ins=((0, 2),)))
    assert blocks(kv) == [4, 4, 0, 3, 4]


def test_a_swap_space_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"swap space of .* GiB \(--swap-space\)"):
        BlockMover(make_kv(), 1 << 60)
