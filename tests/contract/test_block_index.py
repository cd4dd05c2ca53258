"""What every block index does, run against each implementation."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest
import pytest_asyncio

from pagemesh.cache.block_hash import CacheDigest, xor_hashes
from pagemesh.errors import FailedPreconditionError
from pagemesh.kvstore.index import BlockIndex
from pagemesh.kvstore.memory_index import MemoryIndex
from pagemesh.kvstore.redis_client import RedisStore
from pagemesh.kvstore.redis_index import RedisIndex
from pagemesh.telemetry.metrics import Metrics
from tests.support.valkey import Valkey
from tests.unit.kvstore.builders import make_block, make_blocks, make_spread_blocks

BUCKET_BITS = 6

MakeIndex = Callable[..., Awaitable[BlockIndex]]


@pytest_asyncio.fixture(params=["memory", "redis"])
async def make_index(request: pytest.FixtureRequest, valkey: Valkey) -> AsyncIterator[MakeIndex]:
    """Makes indexes of one kind; their integrity is checked at the end."""
    async with AsyncExitStack() as resources:

        async def make(*, max_blocks: int = 0) -> BlockIndex:
            if request.param == "redis":
                store = RedisStore(valkey.url, Metrics(), timeout=10.0)
                resources.push_async_callback(store.close)
                await store.redis.flushdb()
                return RedisIndex(store, max_blocks=max_blocks, bucket_bits=BUCKET_BITS)
            memory = MemoryIndex(max_blocks=max_blocks)
            resources.callback(memory.check_integrity)
            return memory

        yield make


@pytest_asyncio.fixture
async def index(make_index: MakeIndex) -> BlockIndex:
    return await make_index()


async def test_a_lookup_counts_the_leading_blocks_of_each_worker(index: BlockIndex) -> None:
    await index.add_worker("a", 10)
    await index.add_worker("b", 10)
    await index.add_worker("c", 10)
    assert await index.store("a", make_blocks(1, 2, 3))
    assert await index.store("b", make_blocks(1, 2))
    assert await index.store("c", make_blocks(2, 3))

    assert await index.lookup(make_blocks(1, 2, 3, 4)) == {"a": 3, "b": 2}
    assert await index.lookup(make_blocks(1)) == {"a": 1, "b": 1}
    assert await index.lookup(make_blocks(2, 3)) == {"a": 2, "b": 1, "c": 2}


async def test_a_lookup_stops_at_the_first_hole(index: BlockIndex) -> None:
    await index.add_worker("a", 10)
    await index.store("a", make_blocks(1, 3, 4))
    assert await index.lookup(make_blocks(1, 2, 3, 4)) == {"a": 1}


async def test_unknown_prefixes_and_empty_lookups_have_no_holders(index: BlockIndex) -> None:
    assert await index.lookup(make_blocks(1)) == {}
    await index.add_worker("a", 10)
    await index.store("a", make_blocks(1))
    assert await index.lookup(make_blocks(9, 1)) == {}
    assert await index.lookup([]) == {}


async def test_a_digest_follows_what_the_worker_holds(index: BlockIndex) -> None:
    await index.add_worker("a", 3)
    await index.add_worker("b", 3)
    assert await index.digest("a") == CacheDigest()
    await index.store("a", make_blocks(1, 6, 6))
    await index.store("b", make_blocks(2))
    assert await index.digest("a") == CacheDigest(num_blocks=2, names_xor=1 ^ 6)
    assert not await index.store("a", make_blocks(7, 8))
    await index.store("a", make_blocks(6, 8))
    await index.remove("a", make_blocks(1, 1, 9))
    assert await index.digest("a") == CacheDigest(num_blocks=2, names_xor=6 ^ 8)
    await index.remove("a", make_blocks(6, 8))
    assert await index.digest("a") == CacheDigest()


async def test_a_digest_starts_anew_with_the_worker(index: BlockIndex) -> None:
    await index.add_worker("a", 3)
    await index.store("a", make_blocks(1, 6))
    await index.clear("a")
    assert await index.digest("a") == CacheDigest()
    await index.store("a", make_blocks(6))
    assert await index.digest("a") == CacheDigest(1, 6)
    await index.add_worker("a", 3)
    assert await index.digest("a") == CacheDigest()


async def test_a_worker_that_comes_back_keeps_its_blocks(index: BlockIndex) -> None:
    await index.add_worker("a", 10)
    await index.add_worker("b", 10)
    await index.store("a", make_blocks(1, 2, 3, 4))
    await index.remove("a", make_blocks(3))
    await index.store("b", make_blocks(1))
    assert await index.add_worker("a", 4, CacheDigest(3, 1 ^ 2 ^ 4))
    assert await index.lookup(make_blocks(1, 2, 3)) == {"a": 2, "b": 1}
    assert await index.snapshot("a") == frozenset(make_blocks(1, 2, 4))
    assert not await index.store("a", make_blocks(5, 6))
    await index.store("a", make_blocks(3))
    assert await index.digest("a") == CacheDigest(4, 1 ^ 2 ^ 3 ^ 4)


@pytest.mark.parametrize(
    "held",
    [CacheDigest(2, 1), CacheDigest(1, 1 ^ 2), CacheDigest(0, 1 ^ 2), CacheDigest()],
    ids=["other names", "fewer", "impossible", "nothing"],
)
async def test_a_worker_that_comes_back_with_other_blocks_begins_with_none(
    index: BlockIndex, held: CacheDigest
) -> None:
    await index.add_worker("b", 10)
    await index.store("b", make_blocks(1))
    for worker_id in ("known", "unknown"):
        if worker_id == "known":
            await index.add_worker(worker_id, 10)
            await index.store(worker_id, make_blocks(1, 2))
        assert await index.add_worker(worker_id, 10, held) is (held == CacheDigest())
        assert await index.lookup(make_blocks(1, 2)) == {"b": 1}
        assert await index.digest(worker_id) == CacheDigest()
        await index.drop_worker(worker_id)


async def test_blocks_that_were_given_up_are_still_the_workers_when_it_comes_back(
    make_index: MakeIndex,
) -> None:
    index = await make_index(max_blocks=100)
    await index.add_worker("a", 400)
    blocks = make_spread_blocks(*range(400))
    for start in range(0, 400, 50):
        await index.store("a", blocks[start : start + 50])
    assert await index.count("a") == 100
    assert await index.add_worker("a", 400, CacheDigest(400, xor_hashes(blocks)))
    assert await index.count("a") == 100
    assert not await index.store("a", make_spread_blocks(400))


async def test_blocks_can_be_counted_that_the_worker_holds(index: BlockIndex) -> None:
    await index.add_worker("a", 10)
    await index.add_worker("b", 10)
    await index.store("a", make_blocks(1, 3, 4))
    await index.store("b", make_blocks(2))
    assert await index.count_held("a", make_blocks(2, 3, 4, 5)) == 2
    assert await index.count_held("a", []) == 0
    await index.clear("a")
    assert await index.count_held("a", make_blocks(1, 3)) == 0


async def test_storing_twice_counts_once(index: BlockIndex) -> None:
    await index.add_worker("a", 3)
    assert await index.store("a", make_blocks(1, 1, 2))
    assert await index.store("a", make_blocks(2, 3))
    assert await index.count("a") == 3
    assert await index.snapshot("a") == frozenset(make_blocks(1, 2, 3))


async def test_more_blocks_than_announced_are_refused_as_a_whole(index: BlockIndex) -> None:
    await index.add_worker("a", 3)
    assert await index.store("a", make_blocks(1, 2))
    assert not await index.store("a", make_blocks(3, 4))
    assert await index.snapshot("a") == frozenset(make_blocks(1, 2))
    assert await index.lookup(make_blocks(3)) == {}


async def test_many_blocks_are_refused_as_a_whole_too(index: BlockIndex) -> None:
    await index.add_worker("a", 1000)
    assert await index.store("a", make_spread_blocks(*range(600)))
    assert not await index.store("a", make_spread_blocks(*range(1200)))
    assert await index.count("a") == 600
    assert await index.store("a", make_spread_blocks(*range(1000)))
    assert await index.count("a") == 1000


async def test_removed_blocks_are_gone_for_that_worker_only(index: BlockIndex) -> None:
    await index.add_worker("a", 10)
    await index.add_worker("b", 10)
    await index.store("a", make_blocks(1, 2))
    await index.store("b", make_blocks(1, 2))
    await index.remove("a", make_blocks(2, 7))
    assert await index.lookup(make_blocks(1, 2)) == {"a": 1, "b": 2}
    assert await index.count("a") == 1


async def test_a_cleared_worker_holds_nothing_and_can_store_again(index: BlockIndex) -> None:
    await index.add_worker("a", 2)
    await index.store("a", make_blocks(1, 2))
    await index.clear("a")
    assert await index.lookup(make_blocks(1)) == {}
    assert await index.count("a") == 0
    assert await index.store("a", make_blocks(2, 3))
    assert await index.lookup(make_blocks(2, 3)) == {"a": 2}
    assert await index.lookup(make_blocks(1)) == {}


async def test_a_dropped_worker_is_unknown(index: BlockIndex) -> None:
    await index.add_worker("a", 10)
    await index.add_worker("b", 10)
    await index.store("a", make_blocks(1))
    await index.store("b", make_blocks(1))
    await index.drop_worker("a")
    await index.drop_worker("never-added")
    assert await index.lookup(make_blocks(1)) == {"b": 1}
    for call in (index.store, index.remove, index.count_held):
        with pytest.raises(FailedPreconditionError, match="'a'"):
            await call("a", make_blocks(1))
    for ask in (index.clear, index.count, index.digest, index.snapshot):
        with pytest.raises(FailedPreconditionError, match="'a'"):
            await ask("a")


@pytest.mark.parametrize("tidied", [False, True], ids=["before-tidying", "after-tidying"])
async def test_blocks_of_a_dropped_worker_never_show_up_at_another(
    index: BlockIndex, tidied: bool
) -> None:
    await index.add_worker("old", 100)
    await index.store("old", make_blocks(*range(100)))
    await index.drop_worker("old")
    if tidied:
        assert not await index.tidy(1000)
    await index.add_worker("new", 100)
    await index.store("new", make_blocks(5))
    assert await index.lookup(make_blocks(5, 6)) == {"new": 1}
    assert await index.lookup(make_blocks(0)) == {}


async def test_adding_a_worker_again_starts_it_empty(index: BlockIndex) -> None:
    await index.add_worker("a", 10)
    await index.store("a", make_blocks(1))
    await index.add_worker("a", 1)
    assert await index.lookup(make_blocks(1)) == {}
    assert not await index.store("a", make_blocks(1, 2))


async def test_tidying_frees_in_slices_and_says_when_it_is_done(index: BlockIndex) -> None:
    await index.add_worker("a", 1000)
    await index.add_worker("b", 1000)
    await index.store("a", make_spread_blocks(*range(1000)))
    await index.store("b", make_spread_blocks(*range(10)))
    await index.drop_worker("a")
    num_left = [(await index.usage()).num_blocks]
    while await index.tidy(300):
        num_left.append((await index.usage()).num_blocks)
    assert len(num_left) > 3
    assert all(before - after <= 300 for before, after in pairwise(num_left))
    assert not await index.tidy(1)
    assert (await index.usage()).num_blocks == 10
    assert await index.lookup(make_spread_blocks(*range(11))) == {"b": 10}


async def test_more_workers_than_bits_in_a_machine_word(index: BlockIndex) -> None:
    for number in range(150):
        await index.add_worker(f"worker-{number}", 150)
        await index.store(f"worker-{number}", make_blocks(*range(number + 1)))
    holders = await index.lookup(make_blocks(*range(150)))
    assert holders == {f"worker-{number}": number + 1 for number in range(150)}
    assert await index.lookup([make_block(149)]) == {"worker-149": 1}


async def test_an_index_that_is_full_gives_up_what_was_of_no_use_for_longest(
    make_index: MakeIndex,
) -> None:
    index = await make_index(max_blocks=1000)
    await index.add_worker("a", 10_000)
    chain = make_spread_blocks(*range(100))
    await index.store("a", make_spread_blocks(*range(900)))
    for start in range(1000, 4000, 50):
        assert await index.store("a", make_spread_blocks(*range(start, start + 50)))
        assert (await index.usage()).num_blocks <= 1000
        assert await index.lookup(chain) == {"a": 100}
    usage = await index.usage()
    assert usage.num_blocks == usage.num_held == await index.count("a") == 1000
    assert usage.num_evicted == 2900
    assert await index.count_held("a", make_spread_blocks(*range(3800, 4000))) == 200
    assert await index.count_held("a", make_spread_blocks(*range(100, 900))) == 0


async def test_what_was_given_up_is_no_mistake_of_the_index(make_index: MakeIndex) -> None:
    index = await make_index(max_blocks=100)
    names = make_spread_blocks(*range(400))
    for worker_id in ("a", "b"):
        await index.add_worker(worker_id, 400)
        await index.store(worker_id, names)
    everything = CacheDigest(400, xor_hashes(names))
    for worker_id in ("a", "b"):
        assert await index.digest(worker_id) == everything
        assert await index.count(worker_id) == len(await index.snapshot(worker_id)) <= 100
        assert not await index.store(worker_id, make_spread_blocks(400))
    await index.remove("a", names[:150])
    assert await index.digest("a") == CacheDigest(250, xor_hashes(names[150:]))
    assert await index.digest("b") == everything
    await index.remove("a", names[150:])
    assert await index.digest("a") == CacheDigest()
    assert await index.count("a") == 0
    await index.remove("a", names)
    assert await index.digest("a") == CacheDigest()
    await index.clear("b")
    await index.store("b", names[:1])
    assert await index.digest("b") == CacheDigest(1, xor_hashes(names[:1]))


async def test_a_bounded_index_never_finds_more_than_there_is(make_index: MakeIndex) -> None:
    chance = random.Random(7)
    index, everything = await make_index(max_blocks=150), MemoryIndex()
    chains = [make_spread_blocks(*range(start, start + 20)) for start in range(0, 600, 20)]
    workers = [f"worker-{number}" for number in range(10)]
    for worker_id in workers:
        await index.add_worker(worker_id, 250)
        await everything.add_worker(worker_id, 250)
    num_found = 0
    for _ in range(400):
        worker_id, chain = chance.choice(workers), chance.choice(chains)
        deed = chance.choice((*["store"] * 9, *["remove"] * 5, "clear", *["lookup"] * 9))
        if deed == "lookup":
            found, truth = await index.lookup(chain), await everything.lookup(chain)
            assert all(depth <= truth[holder] for holder, depth in found.items())
            num_found += len(found)
            continue
        # Workers say only what changes.
        held = await everything.snapshot(worker_id)
        for each in (index, everything):
            if deed == "store":
                await each.store(worker_id, [block for block in chain if block not in held])
            elif deed == "remove":
                await each.remove(worker_id, [block for block in chain[10:] if block in held])
            else:
                await each.clear(worker_id)
        assert await index.digest(worker_id) == await everything.digest(worker_id)
        await index.tidy(50)
    assert num_found > 20
