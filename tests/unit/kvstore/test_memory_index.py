"""What the in-memory index does beyond the contract: bits are used again, memory stays bounded."""

from __future__ import annotations

import pytest

from pagemesh.kvstore.memory_index import MemoryIndex
from tests.unit.kvstore.builders import make_blocks


def num_masks(index: MemoryIndex) -> int:
    return len(index._masks)


async def test_bits_of_dropped_workers_are_used_again() -> None:
    index = MemoryIndex()
    for epoch in range(50):
        await index.add_worker("a", 10)
        await index.store("a", make_blocks(epoch, epoch + 1))
        await index.drop_worker("a")
        await index.tidy(10)
    index.check_integrity()
    assert index._num_bits == 1
    assert num_masks(index) == 0


async def test_dropping_touches_no_block() -> None:
    index = MemoryIndex()
    await index.add_worker("a", 1000)
    await index.store("a", make_blocks(*range(1000)))
    await index.drop_worker("a")
    assert num_masks(index) == 1000
    assert await index.lookup(make_blocks(1)) == {}
    index.check_integrity()


async def test_a_worker_that_clears_and_stores_in_turn_cannot_pile_up_blocks() -> None:
    index = MemoryIndex()
    await index.add_worker("a", 100)
    for start in range(0, 100_000, 100):
        await index.store("a", make_blocks(*range(start, start + 100)))
        await index.clear("a")
        assert num_masks(index) <= 200
    index.check_integrity()


async def test_the_integrity_check_notices_a_lost_mask() -> None:
    index = MemoryIndex()
    await index.add_worker("a", 10)
    await index.store("a", make_blocks(1, 2))
    index._masks.popitem()
    with pytest.raises(AssertionError, match="masks differ"):
        index.check_integrity()
