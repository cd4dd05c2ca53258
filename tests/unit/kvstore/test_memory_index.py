"""What the in-memory index does beyond the contract: bits are used again, memory stays bounded."""

from __future__ import annotations

import pytest

from pagemesh.kvstore.memory_index import MemoryIndex
from tests.unit.kvstore.builders import make_blocks


async def num_blocks(index: MemoryIndex) -> int:
    return (await index.usage()).num_blocks


async def test_bits_of_dropped_workers_are_used_again() -> None:
    index = MemoryIndex()
    for epoch in range(50):
        await index.add_worker("a", 10)
        await index.store("a", make_blocks(epoch, epoch + 1))
        await index.drop_worker("a")
        await index.tidy(10)
    index.check_integrity()
    assert index._bits.num_bits == 1
    assert await num_blocks(index) == 0


async def test_dropping_touches_no_block() -> None:
    index = MemoryIndex()
    await index.add_worker("a", 1000)
    await index.store("a", make_blocks(*range(1000)))
    await index.drop_worker("a")
    assert await num_blocks(index) == 1000
    assert await index.lookup(make_blocks(1)) == {}
    index.check_integrity()


async def test_a_worker_that_clears_and_stores_in_turn_cannot_pile_up_blocks() -> None:
    index = MemoryIndex()
    await index.add_worker("a", 100)
    for start in range(0, 100_000, 100):
        await index.store("a", make_blocks(*range(start, start + 100)))
        await index.clear("a")
        assert await num_blocks(index) <= 200
    index.check_integrity()


async def test_the_integrity_check_notices_a_lost_block() -> None:
    index = MemoryIndex()
    await index.add_worker("a", 10)
    await index.store("a", make_blocks(1, 2))
    index._table.shards[1].popitem()
    with pytest.raises(AssertionError, match="blocks were counted wrongly"):
        index.check_integrity()
