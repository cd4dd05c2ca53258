"""What the in-memory index does beyond the contract: bits are used again, memory stays bounded."""

from __future__ import annotations

import sys

import pytest

from pagemesh.kvstore.memory_index import MAX_RETIRED, MemoryIndex
from tests.unit.kvstore.builders import make_blocks, make_spread_blocks


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


async def test_what_blocks_take_is_what_python_says_of_them() -> None:
    index = MemoryIndex()
    for number in range(64):
        await index.add_worker(f"worker-{number}", 20_000)
    blocks = make_spread_blocks(*range(20_000))
    await index.store("worker-40", blocks)
    alone = (await index.usage()).num_bytes
    shards = index._table.shards
    names_and_dicts = 20_000 * 64 + sum(map(sys.getsizeof, shards))
    # Every block has the same int.
    assert names_and_dicts <= alone < names_and_dicts + 20_000
    for number, block in enumerate(blocks):
        for worker in (number % 31, 31 + number % 33):
            await index.store(f"worker-{worker}", [block])
    # As many ints as can be told apart: of 1,023 pairs and a third worker, 32 or 48 bytes each.
    different = {id(value) for shard in shards for value in shard.values()}
    ints = sum({id(v): sys.getsizeof(v) for shard in shards for v in shard.values()}.values())
    assert len(different) == 1023
    assert abs((await index.usage()).num_bytes - names_and_dicts - ints) < 20_000


async def test_a_worker_that_clears_all_the_time_does_not_make_masks_longer() -> None:
    index = MemoryIndex()
    await index.add_worker("a", 10)
    await index.add_worker("b", 20_000)
    await index.store("b", make_spread_blocks(*range(20_000)))
    for number in range(1000):
        await index.store("a", make_spread_blocks(number))
        await index.clear("a")
    assert index._bits.num_bits <= MAX_RETIRED + 3
    index.check_integrity()
