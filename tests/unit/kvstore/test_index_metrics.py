"""What the metrics of an index count."""

from __future__ import annotations

from pagemesh.kvstore.changes import Removed, Stored
from pagemesh.kvstore.memory_index import MemoryIndex
from tests.unit.kvstore.builders import Store, make_blocks, make_worker


def counted(store: Store, name: str) -> float | None:
    return store.metrics.registry.get_sample_value(f"pagemesh:index_{name}")


async def test_blocks_are_counted_by_what_became_of_them() -> None:
    store = Store()
    await store.catalog.register(make_worker("w", num_blocks=3))
    feed = await store.catalog.open_stream("w", 1)
    await store.catalog.publish(feed, 1, Stored(make_blocks(1, 2, 3)))
    await store.catalog.publish(feed, 2, Removed(make_blocks(3)))
    assert counted(store, "lookup_seconds_count") == 0
    assert await store.catalog.lookup(make_blocks(1, 2), "model-a") == {"w": 2}
    assert counted(store, "lookup_seconds_count") == 1
    seconds = counted(store, "lookup_seconds_sum")
    assert seconds is not None and 0 < seconds < 1
    assert await store.catalog.publish(feed, 3, Stored(make_blocks(4, 5)))
    assert counted(store, "blocks_stored_total") == 3
    assert counted(store, "blocks_refused_total") == 2
    assert counted(store, "blocks_removed_total") == 1


async def test_what_the_index_takes_is_published() -> None:
    store = Store(index=MemoryIndex(max_blocks=3))
    for worker_id in ("a", "b"):
        await store.index.add_worker(worker_id, max_blocks=10)
        await store.index.store(worker_id, make_blocks(1, 2, 3, 4, 5))
    for _ in range(2):
        usage = await store.index.usage()
        store.index_metrics.on_usage(usage)
    assert counted(store, "distinct_blocks") == 3
    assert counted(store, "blocks") == usage.num_held
    assert counted(store, "blocks_evicted_total") == usage.num_evicted >= 2
    assert counted(store, "bytes") == usage.num_bytes
    assert counted(store, "bytes_per_block") == usage.num_bytes / 3
