"""Workers' own counts against the index, and what a difference leads to."""

from __future__ import annotations

from typing import Any

import structlog

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.kvstore.changes import Beat, Cleared, Digested, Removed, Resumed, Stored, WorkerEvent
from pagemesh.kvstore.feed import SLICE_BLOCKS
from pagemesh.kvstore.memory_index import MemoryIndex
from pagemesh.v1 import types_pb2
from tests.unit.kvstore.builders import Store, make_blocks, make_worker

BEAT = Beat(types_pb2.WorkerLoad())


class Told:
    """A catalog and one worker's stream, on which events are numbered as they come."""

    def __init__(self, num_blocks: int = 10, index_max_blocks: int = 0) -> None:
        self.store = Store(index=MemoryIndex(max_blocks=index_max_blocks))
        self.num_blocks = num_blocks
        self.sequence = 0

    async def join(self, *numbers: int) -> Told:
        await self.store.catalog.register(make_worker("a", num_blocks=self.num_blocks))
        self.feed = await self.store.catalog.open_stream("a", 1)
        assert await self.tell(Stored(make_blocks(*numbers))) == [False]
        return self

    async def tell(self, *events: WorkerEvent) -> list[bool]:
        """For each event, whether a snapshot was asked for."""
        wishes = []
        for event in events:
            self.sequence += 1
            wishes.append(await self.store.catalog.publish(self.feed, self.sequence, event))
        return wishes

    async def believed(self) -> frozenset[bytes]:
        return await self.store.catalog.blocks("a")

    def counted(self, name: str, **labels: str) -> float | None:
        return self.store.metrics.registry.get_sample_value(
            f"pagemesh:index_{name}_total", labels or None
        )


def digested(*numbers: int) -> Digested:
    names_xor = 0
    for number in numbers:
        names_xor ^= number
    return Digested(CacheDigest(len(numbers), names_xor))


def named(logs: list[Any], event: str) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in line.items() if name.startswith(("num_", "worker_id"))}
        for line in logs
        if line["event"] == event
    ]


async def test_equal_counts_are_counted_and_change_nothing() -> None:
    told = await Told().join(1, 2)
    assert await told.tell(digested(1, 2), Removed(make_blocks(1)), digested(2)) == [False] * 3
    assert await told.believed() == frozenset(make_blocks(2))
    assert (told.counted("digests"), told.counted("divergences")) == (2, 0)


async def test_one_that_goes_on_with_other_blocks_is_unknown_until_its_snapshot() -> None:
    told = await Told().join(1, 2)
    assert await told.tell(Resumed(digested(1, 2).digest), Stored(make_blocks(3))) == [False] * 2
    assert await told.believed() == frozenset(make_blocks(1, 2, 3))
    went_on = Resumed(digested(1, 2).digest), Stored(make_blocks(4)), digested(1, 2, 4)
    assert await told.tell(*went_on) == [True, False, False]
    assert await told.believed() == frozenset()
    assert (
        await told.tell(Cleared(), Stored(make_blocks(1, 2, 4)), digested(1, 2, 4)) == [False] * 3
    )
    assert await told.believed() == frozenset(make_blocks(1, 2, 4))
    assert told.counted("divergences") == 0


async def test_a_difference_asks_for_one_snapshot_and_says_how_many_blocks_were_wrong() -> None:
    told = await Told().join(1, 2, 3)
    with structlog.testing.capture_logs() as logs:
        # In truth it holds 3, 4, 5, 6.
        assert await told.tell(digested(3, 4, 5, 6)) == [True]
        # What is under way until the worker hears of it goes on as ever.
        wishes = await told.tell(Removed(make_blocks(3)), digested(4, 5, 6), BEAT)
        assert wishes == [False] * 3
        assert await told.believed() == frozenset(make_blocks(1, 2))
        await told.tell(Cleared(), Stored(make_blocks(4)))
        assert await told.tell(Stored(make_blocks(5, 6, 2)), digested(4, 5, 6, 2)) == [False] * 2
    assert await told.believed() == frozenset(make_blocks(2, 4, 5, 6))
    assert (told.counted("digests"), told.counted("divergences")) == (2, 1)
    assert told.counted("diverged_blocks", kind="missing") == 3
    assert told.counted("diverged_blocks", kind="surplus") == 1
    assert named(logs, "index_diverged") == [
        {"worker_id": "a", "num_believed_blocks": 3, "num_held_blocks": 4}
    ]
    assert named(logs, "index_divergence_measured") == [
        {"worker_id": "a", "num_missing_blocks": 3, "num_surplus_blocks": 1}
    ]


async def test_blocks_that_were_given_up_for_want_of_room_are_no_difference() -> None:
    told = await Told(index_max_blocks=4).join(1, 2, 3, 4, 5, 6)
    assert len(await told.believed()) == 4
    assert await told.tell(digested(1, 2, 3, 4, 5, 6)) == [False]
    # In truth it holds a seventh.
    held = range(1, 8)
    assert await told.tell(digested(*held)) == [True]
    await told.tell(Cleared(), Stored(make_blocks(*held)), digested(*held))
    assert told.counted("diverged_blocks", kind="missing") == 1
    assert told.counted("diverged_blocks", kind="surplus") == 0


async def test_what_the_index_believed_stays_until_the_snapshot_is_whole() -> None:
    told = await Told().join(1, 2)
    await told.tell(digested(1, 2, 3), Cleared(), Stored(make_blocks(1)))
    assert await told.believed() == frozenset(make_blocks(1, 2))
    await told.tell(Stored(make_blocks(2, 3)), digested(1, 2, 3))
    assert await told.believed() == frozenset(make_blocks(1, 2, 3))


async def test_a_clearance_without_a_snapshot_counts_at_the_next_heartbeat() -> None:
    told = await Told().join(1, 2)
    await told.tell(digested(1), Cleared(), BEAT)
    assert await told.believed() == frozenset()
    # From here on, events are put into the index as they come, and compared.
    assert await told.tell(Stored(make_blocks(5)), digested(5)) == [False, False]
    assert await told.believed() == frozenset(make_blocks(5))
    assert told.counted("diverged_blocks", kind="surplus") == 0


async def test_a_gap_forgets_what_was_gathered_and_believed() -> None:
    told = await Told().join(1, 2)
    await told.tell(digested(1), Cleared(), Stored(make_blocks(1)))
    told.sequence += 1
    assert await told.tell(digested(1), Stored(make_blocks(2))) == [True, False]
    assert await told.believed() == frozenset()
    assert await told.tell(Cleared(), Stored(make_blocks(7)), digested(7)) == [False] * 3
    assert await told.believed() == frozenset(make_blocks(7))
    assert (told.counted("digests"), told.counted("divergences")) == (2, 1)


async def test_a_snapshot_of_more_blocks_than_announced_is_refused() -> None:
    told = await Told(num_blocks=3).join(1, 2)
    wishes = await told.tell(digested(1), Cleared(), Stored(make_blocks(1, 2)))
    assert wishes == [True, False, False]
    assert await told.tell(Stored(make_blocks(3, 4)), Stored(make_blocks(5))) == [True, False]
    assert await told.believed() == frozenset()


async def test_a_worker_whose_snapshots_do_not_help_is_asked_ever_more_rarely() -> None:
    told = await Told().join(1)
    wishes = []
    with structlog.testing.capture_logs() as logs:
        for _ in range(40):
            wishes += await told.tell(digested(1, 9))
            if wishes[-1]:
                # Its own count is not that of the snapshot that it sends.
                answer = await told.tell(Cleared(), Stored(make_blocks(1)), digested(1, 9))
                assert answer == [False] * 3
    asked = [number for number, wish in enumerate(wishes) if wish]
    assert asked == [0, 1, 4, 11, 26]
    assert len(named(logs, "index_diverged")) == 5
    # Once it is right again, the next difference is asked about at once.
    assert await told.tell(digested(1), digested(2)) == [False, True]


async def test_a_large_snapshot_is_handled_in_slices() -> None:
    numbers = [*range(1, 2 * SLICE_BLOCKS)]
    told = await Told(num_blocks=len(numbers)).join(*numbers[:10], *numbers[-10:])
    await told.tell(digested(1), Cleared(), Stored(make_blocks(*numbers)), digested(*numbers))
    assert await told.believed() == frozenset(make_blocks(*numbers))
    assert told.counted("diverged_blocks", kind="missing") == len(numbers) - 20
    assert told.counted("diverged_blocks", kind="surplus") == 0
    assert isinstance(told.store.index, MemoryIndex)
    told.store.index.check_integrity()
