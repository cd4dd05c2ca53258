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
