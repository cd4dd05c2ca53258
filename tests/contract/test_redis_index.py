"""What the index on Redis does beyond the contract: several use one server, which may go and come back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import pytest
import pytest_asyncio

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.errors import FailedPreconditionError, UnavailableError
from pagemesh.kvstore.memory_index import MemoryIndex
from pagemesh.kvstore.redis_client import MAX_CONNECTIONS, TURNS, RedisScripts, RedisStore
from pagemesh.kvstore.redis_index import RedisIndex, key_prefix
from pagemesh.telemetry.metrics import Metrics
from tests.support.valkey import Valkey
from tests.unit.kvstore.builders import make_blocks, make_spread_blocks

BUCKET_BITS = 6
PREFIX = key_prefix(BUCKET_BITS)

MakeStore = Callable[[], Awaitable[RedisStore]]


@pytest_asyncio.fixture
async def make_store(valkey: Valkey) -> AsyncIterator[MakeStore]:
    """Connections to one server, which is empty at first."""
    async with AsyncExitStack() as resources:
        made: list[RedisStore] = []

        async def make() -> RedisStore:
            store = RedisStore(valkey.url, Metrics(), timeout=5.0)
            resources.push_async_callback(store.close)
            if not made:
                await store.redis.flushdb()
            made.append(store)
            return store

        yield make


@pytest_asyncio.fixture
async def store(make_store: MakeStore) -> RedisStore:
    return await make_store()


@pytest.fixture
def here(store: RedisStore) -> RedisIndex:
    return RedisIndex(store, bucket_bits=BUCKET_BITS)


@pytest_asyncio.fixture
async def there(make_store: MakeStore, here: RedisIndex) -> RedisIndex:
    """The index of another kvstore on the same server."""
    return RedisIndex(await make_store(), bucket_bits=BUCKET_BITS)


async def tidy_all(index: RedisIndex) -> None:
    while await index.tidy(1000):
        pass


async def replica_of(store: RedisStore, slot: int) -> str:
    """Whose lease a slot goes by."""
    replica = await store.redis.hget(f"{PREFIX}slot:{slot}", "replica")
    assert isinstance(replica, bytes)
    return replica.decode()


async def see_it_back(store: RedisStore) -> None:
    """As the process does that looks after the server."""
    with suppress(UnavailableError):
        # What it may still have is a connection with the server that is gone.
        async with store.probing():
            await store.redis.ping()
    async with store.probing():
        await store.redis.ping()
    store.set_answers()


async def test_what_one_stores_the_other_finds(here: RedisIndex, there: RedisIndex) -> None:
    await here.add_worker("a", 10)
    await here.store("a", make_blocks(1, 2, 3))
    assert await there.lookup(make_blocks(1, 2, 3)) == {"a": 3}
    await there.add_worker("b", 10)
    await there.store("b", make_blocks(1, 2))
    assert await here.lookup(make_blocks(1, 2, 3)) == {"a": 3, "b": 2}
    assert await there.count("a") == 3
    assert await there.digest("a") == CacheDigest(3, 1 ^ 2 ^ 3)
    assert await there.count_held("a", make_blocks(2, 4)) == 1
    assert await there.snapshot("a") == frozenset(make_blocks(1, 2, 3))
    await here.drop_worker("a")
    assert await there.lookup(make_blocks(1, 2, 3)) == {"b": 2}


async def test_only_the_one_that_added_a_worker_last_writes_for_it(
    here: RedisIndex, there: RedisIndex
) -> None:
    await here.add_worker("a", 10)
    await here.store("a", make_blocks(1, 2))
    await there.add_worker("a", 10)
    await there.store("a", make_blocks(1))
    for late in (here.store("a", make_blocks(3)), here.remove("a", make_blocks(1))):
        with pytest.raises(FailedPreconditionError) as refused:
            await late
        assert refused.value.reason == "UNKNOWN_WORKER"
    await here.drop_worker("a")
    assert await there.lookup(make_blocks(1, 2)) == {"a": 1}
    assert await there.digest("a") == CacheDigest(1, 1)


async def test_a_worker_that_went_elsewhere_with_its_blocks_is_written_from_there_alone(
    store: RedisStore, here: RedisIndex, there: RedisIndex
) -> None:
    await here.add_worker("a", 10)
    await here.store("a", make_blocks(1, 2))
    lease = PREFIX + "replica:" + (await replica_of(store, 0))
    assert await there.add_worker("a", 10, CacheDigest(2, 1 ^ 2))
    await there.store("a", make_blocks(3))
    for late in (
        here.store("a", make_blocks(4)),
        here.remove("a", make_blocks(1)),
        here.clear("a"),
    ):
        with pytest.raises(FailedPreconditionError):
            await late
    await here.drop_worker("a")
    assert await store.redis.delete(lease) == 1
    await tidy_all(there)
    assert await there.lookup(make_blocks(1, 2, 3)) == {"a": 3}
    # What it said last before it moved, or says of itself without having moved, proves nothing any more.
    assert not await here.add_worker("a", 10, CacheDigest(2, 1 ^ 2))
    assert await there.lookup(make_blocks(1, 2, 3)) == {}


async def test_a_drop_that_comes_after_the_worker_went_elsewhere_drops_nothing(
    here: RedisIndex, there: RedisIndex
) -> None:
    await here.add_worker("a", 10)
    await there.add_worker("a", 10)
    await there.store("a", make_blocks(1))
    await here.drop_worker("a")
    assert await there.lookup(make_blocks(1)) == {"a": 1}


async def test_a_call_of_before_the_worker_was_cleared_changes_nothing(
    store: RedisStore, here: RedisIndex
) -> None:
    """As it is when a connection stalls, and what is in it arrives after all."""
    scripts = RedisScripts(store, PREFIX, BUCKET_BITS)
    await here.add_worker("a", 10)
    number, token, *_ = await scripts.run("facts", "a")
    await here.store("a", make_blocks(1))
    await here.clear("a")
    await tidy_all(here)
    await here.add_worker("b", 10)
    assert (await scripts.run("facts", "b"))[0] == number
    assert await scripts.run("store", number, token, b"".join(make_blocks(7)), 0) == -1
    assert await scripts.run("remove", number, token, b"".join(make_blocks(7))) == -1
    assert await here.lookup(make_blocks(7)) == {}
    assert await here.count("b") == 0


async def test_one_sweeps_at_a_time_and_another_goes_on_where_it_stopped(
    store: RedisStore, here: RedisIndex, there: RedisIndex
) -> None:
    await here.add_worker("a", 1000)
    await here.store("a", make_spread_blocks(*range(1000)))
    await here.drop_worker("a")
    assert await here.tidy(600)
    left = (await here.usage()).num_blocks
    assert 0 < left < 1000
    assert not await there.tidy(600)
    assert (await there.usage()).num_blocks == left
    # The time of the one that swept is over.
    await store.redis.delete(PREFIX + "sweeper")
    await tidy_all(there)
    assert (await there.usage()).num_blocks == 0
    assert await store.redis.keys(PREFIX + "b:*") == []


async def test_slots_of_a_kvstore_that_is_gone_are_swept_by_another(
    store: RedisStore, here: RedisIndex, there: RedisIndex
) -> None:
    await here.add_worker("a", 10)
    await there.add_worker("b", 10)
    await here.store("a", make_blocks(1, 2))
    await there.store("b", make_blocks(1))
    await tidy_all(there)
    assert await there.lookup(make_blocks(1, 2)) == {"a": 2, "b": 1}
    # Its lease is over.
    assert await store.redis.delete(PREFIX + "replica:" + await replica_of(store, 0)) == 1
    await tidy_all(there)
    assert await there.lookup(make_blocks(1, 2)) == {"b": 1}
    assert (await there.usage()).num_blocks == 1
    with pytest.raises(FailedPreconditionError):
        await here.store("a", make_blocks(3))


async def test_workers_are_unknown_to_a_server_that_restarted_empty(
    valkey: Valkey, store: RedisStore, here: RedisIndex
) -> None:
    await here.add_worker("a", 10)
    await here.store("a", make_blocks(1))
    assert await here.lookup(make_blocks(1)) == {"a": 1}
    valkey.kill()
    valkey.start()
    await see_it_back(store)
    assert await here.lookup(make_blocks(1)) == {}
    with pytest.raises(FailedPreconditionError, match="'a' is not registered"):
        await here.digest("a")
    with pytest.raises(FailedPreconditionError, match="'a' is not registered"):
        await here.store("a", make_blocks(2))
    await here.add_worker("a", 10)
    await here.store("a", make_blocks(1, 2))
    assert await here.lookup(make_blocks(1, 2, 3)) == {"a": 2}


async def test_a_worker_that_was_dropped_while_the_server_was_away_is_dropped_afterwards(
    valkey: Valkey, make_store: MakeStore, there: RedisIndex
) -> None:
    away = RedisStore(valkey.url, Metrics(), timeout=0.1)
    index = RedisIndex(away, bucket_bits=BUCKET_BITS)
    for worker_id in ("a", "c"):
        await index.add_worker(worker_id, 10)
        await index.store(worker_id, make_blocks(1))
    valkey.freeze()
    try:
        for call in (
            index.store("a", make_blocks(2)),
            index.lookup(make_blocks(1)),
            index.clear("a"),
            index.add_worker("b", 10),
            index.tidy(10),
        ):
            with pytest.raises(UnavailableError):
                await call
        await index.drop_worker("a")
        await index.drop_worker("c")
    finally:
        valkey.thaw()
    await see_it_back(away)
    while await index.tidy(1000):
        pass
    assert await there.lookup(make_blocks(1)) == {}
    for worker_id in ("a", "b", "c"):
        with pytest.raises(FailedPreconditionError):
            await there.count(worker_id)
    await away.close()


async def test_snapshots_of_many_workers_wait_for_their_turns_and_not_in_redis(
    store: RedisStore, here: RedisIndex
) -> None:
    """Where a lookup would wait behind all of them."""
    names = make_spread_blocks(*range(600))
    for number in range(40):
        await here.add_worker(f"worker-{number}", 600)
    stored = await asyncio.gather(*(here.store(f"worker-{n}", names) for n in range(40)))
    assert stored == [True] * 40
    assert len(await here.lookup(names)) == 40
    # As many connections were made as were needed at once.
    assert len(await store.redis.client_list()) <= TURNS


async def test_slots_beyond_what_leaves_out_zeros_are_kept_too(
    store: RedisStore, here: RedisIndex
) -> None:
    numbers = (0, 7, 8, 511, 2047, 2048, 5000)
    for number in numbers:
        await store.redis.hset(PREFIX + "meta", "slots", str(number))
        await here.add_worker(f"worker-{number}", 10)
    expected = {}
    for depth, number in enumerate(reversed(numbers), 1):
        await here.store(f"worker-{number}", make_blocks(*range(depth)))
        expected[f"worker-{number}"] = depth
    assert await here.lookup(make_blocks(*range(10))) == expected
    for number in (8, 0, 511, 7, 2047, 2048):
        await here.remove(f"worker-{number}", make_blocks(0))
        del expected[f"worker-{number}"]
        assert await here.lookup(make_blocks(*range(10))) == expected


async def test_cancelled_calls_leave_connections_that_can_be_used(here: RedisIndex) -> None:
    await here.add_worker("a", 10_000)
    blocks = make_spread_blocks(*range(2000))
    await here.store("a", blocks)
    chance = random.Random(5)
    for _ in range(20):
        calls = [asyncio.create_task(here.lookup(blocks[:200])) for _ in range(MAX_CONNECTIONS)]
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    answers = await asyncio.gather(*(here.lookup(blocks) for _ in range(2 * MAX_CONNECTIONS)))
    assert answers == [{"a": 2000}] * (2 * MAX_CONNECTIONS)


@pytest.mark.parametrize("seed", range(3))
async def test_both_indexes_answer_alike(here: RedisIndex, there: RedisIndex, seed: int) -> None:
    """Random calls, some of them for workers that move from one kvstore to the other."""
    chance = random.Random(seed)
    memory = MemoryIndex()
    names = make_spread_blocks(*range(60))
    homes: dict[str, RedisIndex] = {}
    for _ in range(150):
        worker_id = f"worker-{chance.randrange(12)}"
        blocks = chance.sample(names, chance.randrange(1, 25))
        home = homes.get(worker_id)
        deed = chance.choice(("add", "store", "store", "store", "remove", "clear", "drop", "tidy"))
        if home is None or deed == "add":
            homes[worker_id] = chance.choice((here, there))
            await memory.add_worker(worker_id, 40)
            await homes[worker_id].add_worker(worker_id, 40)
        elif deed == "store":
            fits = await memory.store(worker_id, blocks)
            assert await home.store(worker_id, blocks) == fits
        elif deed == "remove":
            await memory.remove(worker_id, blocks)
            await home.remove(worker_id, blocks)
        elif deed == "clear":
            await memory.clear(worker_id)
            await home.clear(worker_id)
        elif deed == "drop":
            del homes[worker_id]
            await memory.drop_worker(worker_id)
            await home.drop_worker(worker_id)
        else:
            await memory.tidy(20)
            await chance.choice((here, there)).tidy(20)
        chain = chance.sample(names, 4)
        expected = await memory.lookup(chain)
        assert await here.lookup(chain) == expected
        assert await there.lookup(chain) == expected
    for worker_id, home in homes.items():
        assert await home.digest(worker_id) == await memory.digest(worker_id)
        assert await home.snapshot(worker_id) == await memory.snapshot(worker_id)
        assert await home.count_held(worker_id, names) == await memory.count_held(worker_id, names)
    assert (await here.usage()).num_held == (await memory.usage()).num_held
