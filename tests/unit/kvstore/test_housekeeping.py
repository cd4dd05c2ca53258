"""Silent workers are dropped, unless it was the kvstore that was not listening."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pagemesh.kvstore.changes import Beat, Stored
from pagemesh.kvstore.housekeeping import LATE_S, MOST_LATE_ROUNDS, TIDY_SLICE, Housekeeper
from pagemesh.kvstore.memory_index import MemoryIndex
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2
from tests.unit.kvstore.builders import Store, make_blocks, make_worker

PERIOD = 0.5


def make_housekeeper(store: Store, metrics: Metrics | None = None) -> Housekeeper:
    return Housekeeper(
        store.catalog,
        store.index,
        store.index_metrics,
        metrics or Metrics(),
        PERIOD,
        store.clock,
    )


async def pass_time(store: Store, housekeeper: Housekeeper, num_ticks: int) -> None:
    for _ in range(num_ticks):
        store.clock.advance(PERIOD)
        await housekeeper.tick()


def member_ids(store: Store) -> list[str]:
    return [member.info.worker_id for member in store.catalog.members()]


async def test_a_silent_worker_is_dropped_after_three_intervals() -> None:
    store = Store()
    housekeeper = make_housekeeper(store)
    await store.catalog.register(make_worker("a"))
    await pass_time(store, housekeeper, 6)
    assert member_ids(store) == ["a"]
    await pass_time(store, housekeeper, 1)
    assert member_ids(store) == []


async def test_nobody_is_dropped_for_heartbeats_that_a_stopped_kvstore_could_not_read() -> None:
    store = Store()
    housekeeper = make_housekeeper(store)
    await store.catalog.register(make_worker("beating"))
    await store.catalog.register(make_worker("quiet"))
    stream = await store.catalog.open_stream("beating", 1)
    store.clock.advance(60.0)
    await housekeeper.tick()
    assert member_ids(store) == ["beating", "quiet"]
    await store.catalog.publish(stream, 1, Beat(types_pb2.WorkerLoad()))
    await pass_time(store, housekeeper, 1)
    assert member_ids(store) == ["beating"]


async def test_a_worker_whose_event_waits_for_a_slow_index_is_not_silent() -> None:
    index_goes_on = asyncio.Event()

    class SlowIndex(MemoryIndex):
        async def store(self, worker_id: str, block_hashes: Sequence[bytes]) -> bool:
            await index_goes_on.wait()
            return await super().store(worker_id, block_hashes)

    store = Store(index=SlowIndex())
    housekeeper = make_housekeeper(store)
    await store.catalog.register(make_worker("a"))
    feed = await store.catalog.open_stream("a", 1)
    publishing = asyncio.create_task(store.catalog.publish(feed, 1, Stored(make_blocks(1))))
    await asyncio.sleep(0)
    async with asyncio.timeout(5.0):
        await pass_time(store, housekeeper, 8)
    assert member_ids(store) == ["a"]
    index_goes_on.set()
    await publishing
    # What it sent behind that event is still to be read.
    await pass_time(store, housekeeper, 6)
    assert member_ids(store) == ["a"]
    await pass_time(store, housekeeper, 1)
    assert member_ids(store) == []


async def test_nobody_is_dropped_in_a_round_that_comes_late() -> None:
    store = Store()
    housekeeper = make_housekeeper(store)
    await store.catalog.register(make_worker("a"))
    for _ in range(8):
        store.clock.advance(PERIOD + LATE_S + 0.01)
        await housekeeper.tick()
    assert member_ids(store) == ["a"]
    await pass_time(store, housekeeper, 1)
    assert member_ids(store) == []


async def test_a_kvstore_that_is_always_behind_drops_silent_workers_at_last() -> None:
    store = Store()
    housekeeper = make_housekeeper(store)
    await store.catalog.register(make_worker("a"))
    for _ in range(MOST_LATE_ROUNDS):
        store.clock.advance(PERIOD + LATE_S + 0.01)
        await housekeeper.tick()
    assert member_ids(store) == ["a"]
    store.clock.advance(PERIOD + LATE_S + 0.01)
    await housekeeper.tick()
    assert member_ids(store) == []


async def test_blocks_of_dropped_workers_are_freed_however_many_they_are() -> None:
    store = Store()
    housekeeper = make_housekeeper(store)
    await store.catalog.register(make_worker("a", num_blocks=3 * TIDY_SLICE))
    stream = await store.catalog.open_stream("a", 1)
    await store.catalog.publish(stream, 1, Stored(make_blocks(*range(3 * TIDY_SLICE))))
    await store.catalog.close_stream(stream)
    await housekeeper.tick()
    assert not await store.index.tidy(0)
    assert isinstance(store.index, MemoryIndex)
    store.index.check_integrity()


async def test_members_and_blocks_are_counted() -> None:
    store = Store()
    metrics = store.metrics
    housekeeper = make_housekeeper(store, metrics)
    for worker_id in ("a", "b"):
        await store.catalog.register(make_worker(worker_id))
        stream = await store.catalog.open_stream(worker_id, 1)
        await store.catalog.publish(stream, 1, Stored(make_blocks(1, 2, 3)))
    await housekeeper.tick()
    assert metrics.registry.get_sample_value("pagemesh:kvstore_workers") == 2
    assert metrics.registry.get_sample_value("pagemesh:index_blocks") == 6
    assert metrics.registry.get_sample_value("pagemesh:index_distinct_blocks") == 3
