"""What the metrics of an index count."""

from __future__ import annotations

from pagemesh.kvstore.instrumented_index import InstrumentedIndex
from pagemesh.kvstore.memory_index import MemoryIndex
from pagemesh.telemetry.metrics import Metrics

NAMES = [bytes([65 + number]) * 16 for number in range(5)]


async def test_blocks_are_counted_by_what_became_of_them() -> None:
    metrics = Metrics()
    index = InstrumentedIndex(MemoryIndex(), metrics)
    await index.add_worker("w", max_blocks=3)
    assert await index.store("w", NAMES[:3])
    assert not await index.store("w", NAMES[3:])
    await index.remove("w", NAMES[:1])

    def counted(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"pagemesh:index_{name}")

    assert counted("blocks_stored_total") == 3
    assert counted("blocks_refused_total") == 2
    assert counted("blocks_removed_total") == 1
    assert counted("lookup_seconds_count") == 0
    assert await index.lookup(NAMES[1:2]) == {"w": 1}
    assert counted("lookup_seconds_count") == 1
    seconds = counted("lookup_seconds_sum")
    assert seconds is not None and 0 < seconds < 1


async def test_what_the_index_takes_is_published() -> None:
    metrics = Metrics()
    index = InstrumentedIndex(MemoryIndex(max_blocks=3), metrics)
    for worker_id in ("a", "b"):
        await index.add_worker(worker_id, max_blocks=10)
        await index.store(worker_id, NAMES)
    for _ in range(2):
        usage = await index.usage()

    def published(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"pagemesh:index_{name}")

    assert published("distinct_blocks") == 3
    assert published("blocks") == usage.num_held
    assert published("blocks_evicted_total") == usage.num_evicted >= 2
    assert published("bytes") == usage.num_bytes
    assert published("bytes_per_block") == usage.num_bytes / 3
