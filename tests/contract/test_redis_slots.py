"""Slots and room of the index on Redis, where the server lost a part of them or was away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import pytest_asyncio

from pagemesh.errors import FailedPreconditionError, UnavailableError
from pagemesh.kvstore.index import NOTHING_HELD
from pagemesh.kvstore.redis_client import RedisScripts, RedisStore
from pagemesh.kvstore.redis_index import RedisIndex, key_prefix
from pagemesh.kvstore.redis_slots import DROPS_PER_CALL, RedisSlots
from pagemesh.telemetry.metrics import Metrics
from tests.support.valkey import Valkey
from tests.unit.kvstore.builders import make_blocks, make_spread_blocks

BUCKET_BITS = 6
PREFIX = key_prefix(BUCKET_BITS)


@pytest_asyncio.fixture
async def store(valkey: Valkey) -> AsyncIterator[RedisStore]:
    store = RedisStore(valkey.url, Metrics(), timeout=5.0)
    yield store
    await store.close()


@pytest.fixture
def index(store: RedisStore) -> RedisIndex:
    return RedisIndex(store, bucket_bits=BUCKET_BITS)


async def tidy_all(index: RedisIndex) -> None:
    while await index.tidy(1000):
        pass


async def test_a_worker_whose_slot_was_deleted_is_added_again_and_its_blocks_are_swept(
    store: RedisStore, index: RedisIndex
) -> None:
    await index.add_worker("a", 10)
    await index.store("a", make_blocks(1, 2))
    await store.redis.delete(f"{PREFIX}slot:0")
    assert (await index.usage()).num_held == 0
    with pytest.raises(FailedPreconditionError):
        await index.store("a", make_blocks(3))
    await index.add_worker("a", 10)
    await index.store("a", make_blocks(2))
    assert await index.lookup(make_blocks(1)) == {}
    assert await index.lookup(make_blocks(2)) == {"a": 1}
    await tidy_all(index)
    assert (await index.usage()).num_blocks == 1


async def test_a_sweep_that_the_server_forgot_about_begins_anew(
    store: RedisStore, index: RedisIndex
) -> None:
    await index.add_worker("a", 1000)
    await index.store("a", make_spread_blocks(*range(1000)))
    await index.drop_worker("a")
    assert await index.tidy(300)
    await store.redis.hdel(f"{PREFIX}meta", "swept")
    await tidy_all(index)
    assert await store.redis.keys(f"{PREFIX}b:*") == []


async def test_what_happens_while_the_server_is_away_leaves_one_thing_to_do_for_each_worker(
    store: RedisStore,
) -> None:
    slots = RedisSlots(RedisScripts(store, PREFIX, BUCKET_BITS))
    num_workers = 2 * DROPS_PER_CALL + 1
    names = [f"worker-{number}" for number in range(num_workers)]
    # From here on the server has the script.
    await slots.add("warm-up", 10, NOTHING_HELD)
    await slots.drop("warm-up")
    for name in names:
        await slots.add(name, 10, NOTHING_HELD)
    store.set_away(TimeoutError())
    for _ in range(20):
        for name in (*names, "never-sent"):
            with pytest.raises(UnavailableError):
                await slots.add(name, 10, NOTHING_HELD)
            await slots.drop(name)
    store.set_answers()
    assert await store.redis.hlen(f"{PREFIX}live") == num_workers
    num_commands = (await store.redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert [await slots.drop_late() for _ in range(4)] == [True, True, False, False]
    assert await store.redis.hlen(f"{PREFIX}live") == 0
    after = (await store.redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert after - num_commands == num_workers


async def test_a_late_drop_spares_what_was_added_since(store: RedisStore) -> None:
    slots = RedisSlots(RedisScripts(store, PREFIX, BUCKET_BITS))
    await slots.add("a", 10, NOTHING_HELD)
    token = (await slots.facts("a")).slot.token
    replica, _, number = token.rpartition(".")
    await slots.add("a", 10, NOTHING_HELD)
    scripts = RedisScripts(store, PREFIX, BUCKET_BITS)
    await scripts.run("drop", "a", replica, number, "version")
    assert (await slots.facts("a")).slot.token != token
    await scripts.run("drop", "a", "another", 1000, "version")
    await slots.facts("a")


async def test_whoever_lost_a_slot_to_nobody_is_credited_with_nothing(store: RedisStore) -> None:
    """Where no slot is left, a table of workers that was read before must not be used any more."""
    index = RedisIndex(store, bucket_bits=BUCKET_BITS)
    for call in (index.clear("a"), index.add_worker("a", 10)):
        await store.redis.flushdb()
        await index.add_worker("a", 10)
        await index.store("a", make_blocks(1))
        assert await index.lookup(make_blocks(1)) == {"a": 1}
        await store.redis.hset(f"{PREFIX}meta", "slots", "32768")
        with pytest.raises(UnavailableError):
            await call
        assert await index.lookup(make_blocks(1)) == {}


async def test_a_bound_that_was_lowered_is_reached_in_slices(
    store: RedisStore, index: RedisIndex
) -> None:
    await index.add_worker("a", 5000)
    await index.store("a", make_spread_blocks(*range(3000)))
    smaller = RedisIndex(store, max_blocks=1000, bucket_bits=BUCKET_BITS)
    await smaller.add_worker("b", 100)
    await smaller.store("b", make_spread_blocks(*range(5000, 5010)))
    num_left = [(await smaller.usage()).num_blocks]
    assert num_left[0] >= 3010 - 20
    while await smaller.tidy(100):
        num_left.append((await smaller.usage()).num_blocks)
    usage = await smaller.usage()
    assert (usage.num_blocks, usage.num_evicted) == (1000, 2010)
    assert max(a - b for a, b in pairwise(num_left)) <= 100
    assert await index.count("a") + await smaller.count("b") == 1000


async def test_a_small_bound_on_many_buckets_is_kept_without_looking_at_all_of_them(
    store: RedisStore,
) -> None:
    index = RedisIndex(store, max_blocks=500)
    await index.add_worker("a", 5000)
    for start in range(0, 2000, 250):
        await index.store("a", make_spread_blocks(*range(start, start + 250)))
    assert (await index.usage()).num_blocks == 500
    stats = await store.redis.info("commandstats")
    # Of 131,072 buckets nearly all are empty.
    assert stats["cmdstat_hgetall"]["calls"] < 40_000


async def test_indexes_of_other_settings_do_not_read_each_other(store: RedisStore) -> None:
    one, other = (RedisIndex(store, bucket_bits=bits) for bits in (6, 7))
    await one.add_worker("a", 10)
    await one.store("a", make_blocks(1))
    assert await other.lookup(make_blocks(1)) == {}


async def test_the_bytes_of_an_index_are_about_what_the_server_says_of_its_keys(
    store: RedisStore, index: RedisIndex
) -> None:
    await index.add_worker("a", 5000)
    await index.store("a", make_spread_blocks(*range(5000)))
    keys = await store.redis.keys(f"{PREFIX}b:*")
    num_bytes = sum([await store.redis.memory_usage(key, samples=0) or 0 for key in keys])
    assert num_bytes / 2 < (await index.usage()).num_bytes < 2 * num_bytes
