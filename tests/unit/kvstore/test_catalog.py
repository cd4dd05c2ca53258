"""Members and blocks in step, and what watchers are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import pytest

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.errors import FailedPreconditionError
from pagemesh.kvstore.catalog import BULK_BLOCKS, Resync, Synced
from pagemesh.kvstore.changes import Beat, Change, Cleared, Joined, Left, Removed, Stored
from pagemesh.kvstore.feed import Feed
from pagemesh.kvstore.index import NOTHING_HELD
from pagemesh.kvstore.memory_index import MemoryIndex
from pagemesh.v1 import types_pb2
from tests.unit.kvstore.builders import Store, make_blocks, make_worker


async def join(store: Store, worker_id: str, *numbers: int, epoch: int = 1) -> Feed:
    """A new member that holds some blocks."""
    await store.catalog.register(make_worker(worker_id, epoch=epoch, num_blocks=10))
    stream = await store.catalog.open_stream(worker_id, epoch)
    await store.catalog.publish(stream, 1, Stored(make_blocks(*numbers)))
    return stream


async def holders(store: Store, *numbers: int) -> dict[str, int]:
    return await store.catalog.lookup(make_blocks(*numbers), "model-a")


async def test_published_blocks_are_found_until_the_stream_ends() -> None:
    store = Store()
    stream = await join(store, "a", 1, 2)
    await join(store, "b", 1)
    assert await holders(store, 1, 2) == {"a": 2, "b": 1}
    await store.catalog.close_stream(stream)
    assert await holders(store, 1, 2) == {"b": 1}
    assert [m.info.worker_id for m in store.catalog.members()] == ["b"]


async def test_only_workers_of_the_asked_model_are_named() -> None:
    store = Store()
    await join(store, "a", 1)
    assert await store.catalog.lookup(make_blocks(1), "model-b") == {}


async def test_a_newer_incarnation_starts_without_blocks() -> None:
    store = Store()
    old = await join(store, "a", 1, 2)
    await join(store, "a", 2, epoch=2)
    assert await holders(store, 1) == {}
    assert await holders(store, 2) == {"a": 1}
    with pytest.raises(FailedPreconditionError):
        await store.catalog.publish(old, 2, Stored(make_blocks(1)))
    await store.catalog.close_stream(old)
    assert await holders(store, 2) == {"a": 1}


async def test_a_gap_forgets_the_blocks_until_the_snapshot_is_there() -> None:
    store = Store()
    stream = await join(store, "a", 1, 2)
    assert await store.catalog.publish(stream, 3, Removed(make_blocks(1)))
    assert await holders(store, 2) == {}
    assert not await store.catalog.publish(stream, 4, Stored(make_blocks(7)))
    assert await holders(store, 7) == {}
    assert not await store.catalog.publish(stream, 5, Cleared())
    assert not await store.catalog.publish(stream, 6, Stored(make_blocks(2, 3)))
    assert await store.catalog.blocks("a") == frozenset(make_blocks(2, 3))


async def test_more_blocks_than_announced_ask_for_a_snapshot_and_spare_the_others() -> None:
    store = Store()
    stream = await join(store, "a", *range(10))
    await join(store, "b", 0)
    assert await store.catalog.publish(stream, 2, Stored(make_blocks(10)))
    assert await holders(store, 0) == {"b": 1}
    assert not await store.catalog.publish(stream, 3, Stored(make_blocks(11)))
    assert await store.catalog.count_blocks("a") == 0
    await store.catalog.publish(stream, 4, Cleared())
    await store.catalog.publish(stream, 5, Stored(make_blocks(*range(1, 11))))
    assert await store.catalog.count_blocks("a") == 10


async def test_silent_workers_are_dropped_with_their_blocks() -> None:
    store = Store()
    await join(store, "quiet", 1)
    beating = await join(store, "beating", 1)
    store.clock.advance(2.5)
    await store.catalog.publish(beating, 2, Beat(types_pb2.WorkerLoad()))
    store.clock.advance(1.0)
    await store.catalog.drop_silent()
    assert await holders(store, 1) == {"beating": 1}
    assert [m.info.worker_id for m in store.catalog.members()] == ["beating"]


async def test_a_silent_worker_that_speaks_again_is_told_to_register() -> None:
    store = Store()
    stream = await join(store, "a", 1)
    store.clock.advance(3.5)
    await store.catalog.drop_silent()
    with pytest.raises(FailedPreconditionError) as caught:
        await store.catalog.publish(stream, 2, Beat(types_pb2.WorkerLoad()))
    assert caught.value.reason == "UNKNOWN_WORKER"


async def test_lookups_get_between_the_snapshots_of_all_workers() -> None:
    store = Store()
    num_blocks = BULK_BLOCKS + 1
    feeds = []
    for number in range(20):
        await store.catalog.register(make_worker(f"worker-{number}", num_blocks=num_blocks))
        feeds.append(await store.catalog.open_stream(f"worker-{number}", 1))
    blocks = make_blocks(*range(num_blocks))
    snapshots = [
        asyncio.create_task(store.catalog.publish(feed, 1, Stored(blocks))) for feed in feeds
    ]
    num_taken_in = []
    for _ in range(4):
        # As long as a call takes to get through grpc.
        for _ in range(5):
            await asyncio.sleep(0)
        num_taken_in.append(len(await holders(store, 0)))
    await asyncio.gather(*snapshots)
    for num_turns, count in enumerate(num_taken_in, 1):
        assert count <= 3 * num_turns
    assert len(await holders(store, 0)) == 20


async def test_workers_whose_events_wait_behind_the_snapshots_of_others_are_not_silent() -> None:
    store = Store()
    num_blocks = BULK_BLOCKS + 1
    snapshots = []
    for number in range(20):
        await store.catalog.register(make_worker(f"worker-{number}", num_blocks=num_blocks))
        feed = await store.catalog.open_stream(f"worker-{number}", 1)
        stored = Stored(make_blocks(*range(num_blocks)))
        snapshots.append(asyncio.create_task(store.catalog.publish(feed, 1, stored)))
    await asyncio.sleep(0)
    store.clock.advance(3.5)
    await store.catalog.drop_silent()
    await asyncio.gather(*snapshots)
    assert len(await holders(store, 0)) == 20


Following = AsyncGenerator[Change | Resync | Synced, None]


async def take(changes: Following, count: int) -> list[Change | Resync | Synced]:
    return [await anext(changes) for _ in range(count)]


async def test_a_new_watcher_gets_the_present_members_then_changes() -> None:
    store = Store()
    await store.catalog.register(make_worker("a"))
    changes = store.catalog.follow(0, store.log.log_id)
    assert await take(changes, 2) == [
        Change(101, Joined(make_worker("a"))),
        Synced(101, store.log.log_id),
    ]
    await store.catalog.register(make_worker("b"))
    assert await take(changes, 1) == [Change(102, Joined(make_worker("b")))]
    await changes.aclose()


async def test_a_watcher_resumes_where_it_was() -> None:
    store = Store()
    await store.catalog.register(make_worker("a"))
    await store.catalog.register(make_worker("b"))
    changes = store.catalog.follow(101, store.log.log_id)
    assert await take(changes, 2) == [
        Change(102, Joined(make_worker("b"))),
        Synced(102, store.log.log_id),
    ]
    await changes.aclose()


@pytest.mark.parametrize("revision", [5, 99, 7000], ids=["older", "just-before", "never-reached"])
async def test_a_watcher_from_another_time_starts_over(revision: int) -> None:
    store = Store()
    await store.catalog.register(make_worker("a"))
    changes = store.catalog.follow(revision, store.log.log_id)
    assert await take(changes, 3) == [
        Resync(),
        Change(101, Joined(make_worker("a"))),
        Synced(101, store.log.log_id),
    ]
    await changes.aclose()


async def test_a_revision_of_another_replica_is_never_taken_for_one_of_this() -> None:
    store, other = Store(), Store()
    await store.catalog.register(make_worker("a"))
    await store.catalog.register(make_worker("b"))
    changes = store.catalog.follow(101, other.log.log_id)
    assert await take(changes, 4) == [
        Resync(),
        Change(101, Joined(make_worker("a"))),
        Change(102, Joined(make_worker("b"))),
        Synced(102, store.log.log_id),
    ]
    await store.catalog.register(make_worker("c"))
    assert await take(changes, 1) == [Change(103, Joined(make_worker("c")))]
    await changes.aclose()


async def test_a_watcher_that_is_too_slow_for_the_log_starts_over() -> None:
    store = Store()
    stream = await join(store, "a")
    changes = store.catalog.follow(0, store.log.log_id)
    assert await take(changes, 2) == [
        Change(101, Joined(make_worker("a", num_blocks=10))),
        Synced(101, store.log.log_id),
    ]
    for sequence in range(2, 12):
        load = types_pb2.WorkerLoad(running_request_count=sequence)
        await store.catalog.publish(stream, sequence, Beat(load))
    await store.catalog.close_stream(stream)
    await store.catalog.register(make_worker("b"))
    assert await take(changes, 3) == [
        Resync(),
        Change(113, Joined(make_worker("b"))),
        Synced(113, store.log.log_id),
    ]
    await store.catalog.register(make_worker("c"))
    assert await take(changes, 1) == [Change(114, Joined(make_worker("c")))]
    await changes.aclose()


async def test_following_from_any_revision_that_was_given_misses_nothing() -> None:
    store = Store()
    await store.catalog.register(make_worker("a"))
    await store.catalog.register(make_worker("b"))
    changes = store.catalog.follow(0, store.log.log_id)
    first = await anext(changes)
    await changes.aclose()
    assert first == Change(101, Joined(make_worker("a")))
    store.members.drop("a")
    resumed = store.catalog.follow(101, store.log.log_id)
    assert await take(resumed, 3) == [
        Change(102, Joined(make_worker("b"))),
        Change(103, Left("a")),
        Synced(103, store.log.log_id),
    ]
    await resumed.aclose()


class StuckIndex(MemoryIndex):
    """One in which nobody can be added for some time."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def add_worker(
        self, worker_id: str, max_blocks: int, held: CacheDigest = NOTHING_HELD
    ) -> bool:
        await self.goes_on.wait()
        return await super().add_worker(worker_id, max_blocks, held)


async def give_up(index: StuckIndex, call: Coroutine[Any, Any, object]) -> None:
    """Cancel a call while the index is stuck."""
    index.goes_on.clear()
    calling = asyncio.create_task(call)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not calling.done()
    calling.cancel()
    await asyncio.wait([calling])
    index.goes_on.set()


async def test_a_registration_that_was_given_up_leaves_nothing_of_an_earlier_incarnation() -> None:
    index = StuckIndex()
    store = Store(index=index)
    await join(store, "a", 1, 2)
    info = make_worker("a", epoch=2, num_blocks=10)
    await give_up(index, store.catalog.register(info))
    await store.catalog.register(info)
    feed = await store.catalog.open_stream("a", 2)
    assert await holders(store, 1) == {}
    assert await store.catalog.publish(feed, 1, Stored(make_blocks(3)))
    assert not await store.catalog.publish(feed, 2, Cleared())
    assert not await store.catalog.publish(feed, 3, Stored(make_blocks(2, 3)))
    assert await store.catalog.blocks("a") == frozenset(make_blocks(2, 3))


async def test_a_stream_that_was_given_up_as_it_began_has_ended() -> None:
    index = StuckIndex()
    store = Store(index=index)
    await join(store, "a", 1)
    await give_up(index, store.catalog.open_stream("a", 1))
    assert store.catalog.members() == []
    assert await index.lookup(make_blocks(1)) == {}


async def test_a_silent_worker_that_cannot_be_dropped_does_not_keep_the_others() -> None:
    class FailingIndex(MemoryIndex):
        async def drop_worker(self, worker_id: str) -> None:
            if fails and worker_id == "a":
                raise RuntimeError("it cannot be dropped")
            await super().drop_worker(worker_id)

    fails = False
    store = Store(index=FailingIndex())
    await join(store, "a", 1)
    await join(store, "b", 1)
    fails = True
    store.clock.advance(3.5)
    await store.catalog.drop_silent()
    assert store.catalog.members() == []
    assert await holders(store, 1) == {}
