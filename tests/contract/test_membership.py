"""Workers publish, the kvstore keeps, routers follow: all three over real gRPC on loopback."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
import structlog

from pagemesh.membership import publisher
from pagemesh.membership.directory import Directory
from pagemesh.membership.roster import MemberChange
from tests.contract.kvstore_harness import (
    PublishingWorker,
    connected,
    directory_of,
    eventually,
    index_becomes,
    running_kvstore,
    serving,
)
from tests.support.ports import free_port
from tests.unit.kvstore.builders import Store, make_block, make_worker

FINGERPRINT = "model-a"


def live_ids(directory: Directory) -> list[str]:
    return sorted(worker.worker_id for worker in directory.workers() if worker.live)


def known_ids(directory: Directory) -> list[str]:
    return sorted(worker.worker_id for worker in directory.workers())


async def index_matches(kvstore: str, *workers: PublishingWorker) -> None:
    """Wait until the kvstore holds exactly what the workers' caches hold."""
    async with connected(kvstore) as stub:
        await index_becomes(stub, {worker.info.worker_id: worker.cached for worker in workers})


async def test_the_index_follows_the_cache_through_stores_and_evictions() -> None:
    async with (
        running_kvstore() as kvstore,
        PublishingWorker(kvstore, make_worker("a", num_blocks=16)) as worker,
    ):
        for start in range(0, 600, 100):
            await worker.generate(range(start + 20, start + 50))
        assert 0 < len(worker.cached) <= 16
        await index_matches(kvstore, worker)


async def test_blocks_cached_before_joining_are_published_too() -> None:
    port = free_port()
    async with PublishingWorker(f"127.0.0.1:{port}", make_worker("a", num_blocks=32)) as worker:
        await worker.generate(range(20, 60))
        assert worker.cached
        async with running_kvstore(port=port) as kvstore:
            await index_matches(kvstore, worker)


async def test_what_an_answer_leaves_behind_is_told_before_the_next_report_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "LOAD_PERIOD", 3600.0)
    async with (
        running_kvstore(heartbeat_interval=3600.0) as kvstore,
        PublishingWorker(kvstore, make_worker("a", num_blocks=32)) as worker,
    ):
        for start in (20, 60):
            await worker.generate(range(start, start + 30))
            await index_matches(kvstore, worker)


async def test_lookup_says_who_holds_how_much() -> None:
    async with (
        running_kvstore() as kvstore,
        directory_of(kvstore) as directory,
        PublishingWorker(kvstore, make_worker("a", num_blocks=32)) as a,
        PublishingWorker(kvstore, make_worker("b", num_blocks=32)) as b,
    ):
        await a.generate(range(20, 37))
        await b.generate(range(20, 29))
        await index_matches(kvstore, a, b)
        chain = sorted(b.cached) + sorted(a.cached - b.cached)
        assert len(a.cached) == 4
        assert len(b.cached) == 2
        holders = await directory.lookup([*chain, make_block(1)], FINGERPRINT, timeout=5.0)
        assert holders == {"a": 4, "b": 2}
        assert await directory.lookup(chain, "another-model", timeout=5.0) == {}


async def test_a_lookup_that_cannot_be_answered_gives_none() -> None:
    port = free_port()
    async with directory_of(f"127.0.0.1:{port}") as directory:
        assert await directory.lookup([make_block(1)], FINGERPRINT, timeout=0.5) is None


async def test_a_lookup_that_is_refused_gives_none() -> None:
    async with running_kvstore() as kvstore, directory_of(kvstore) as directory:
        assert await directory.lookup([b"short"], FINGERPRINT, timeout=5.0) is None


async def test_listeners_hear_who_joins_and_leaves() -> None:
    async with running_kvstore() as kvstore, directory_of(kvstore) as directory:
        heard: list[tuple[MemberChange, str, int]] = []
        directory.subscribe(
            lambda change, worker: heard.append((change, worker.worker_id, worker.info.epoch))
        )
        async with PublishingWorker(kvstore, make_worker("a", num_blocks=8)):
            await eventually(lambda: heard == [(MemberChange.JOINED, "a", 1)])
            async with PublishingWorker(kvstore, make_worker("a", epoch=2, num_blocks=8)):
                await eventually(lambda: len(heard) == 3)
        await eventually(lambda: len(heard) == 4)
        assert heard[1:] == [
            (MemberChange.LEFT, "a", 1),
            (MemberChange.JOINED, "a", 2),
            (MemberChange.LEFT, "a", 2),
        ]


async def test_a_worker_that_closes_is_gone_at_once_with_its_blocks() -> None:
    # Long heartbeats: only the end of the stream can be what removes it.
    async with (
        running_kvstore(heartbeat_interval=60.0) as kvstore,
        directory_of(kvstore) as directory,
        PublishingWorker(kvstore, make_worker("a", num_blocks=32)) as a,
    ):
        async with PublishingWorker(kvstore, make_worker("b", num_blocks=32)) as b:
            await a.generate(range(20, 37))
            await b.generate(range(20, 37))
            await index_matches(kvstore, a, b)
            await eventually(lambda: live_ids(directory) == ["a", "b"])
        await eventually(lambda: known_ids(directory) == ["a"])
        await index_matches(kvstore, a)


async def test_a_worker_with_blocks_of_another_shape_waits_until_the_others_are_gone() -> None:
    with structlog.testing.capture_logs() as logs:
        async with (
            running_kvstore() as kvstore,
            directory_of(kvstore) as directory,
            AsyncExitStack() as other,
        ):
            async with PublishingWorker(kvstore, make_worker("old", num_blocks=8)):
                await eventually(lambda: live_ids(directory) == ["old"])
                new = make_worker("new", num_blocks=8, block_size=32)
                await other.enter_async_context(PublishingWorker(kvstore, new))
                await eventually(lambda: len(refusals(logs)) == 2)
                assert live_ids(directory) == ["old"]
            await eventually(lambda: live_ids(directory) == ["new"])
    # However often it tries: one line of the kvstore each time, but one of the worker in all.
    (told,) = [line for line in logs if line["event"] == "kvstore_refused"]
    assert (told["log_level"], told["code"]) == ("error", "FAILED_PRECONDITION")
    assert "'new' has KV blocks of 32 tokens" in told["detail"]
    assert "'old' at 127.0.0.1:7001 has 16 tokens" in told["detail"]


async def test_a_worker_of_another_model_under_the_same_name_waits_and_disturbs_nobody() -> None:
    with structlog.testing.capture_logs() as logs:
        async with (
            running_kvstore() as kvstore,
            directory_of(kvstore) as directory,
            AsyncExitStack() as other,
        ):
            async with PublishingWorker(kvstore, make_worker("old", num_blocks=32)) as old:
                await eventually(lambda: live_ids(directory) == ["old"])
                new = make_worker("new", num_blocks=8, fingerprint="model-b")
                await other.enter_async_context(PublishingWorker(kvstore, new))
                await eventually(lambda: any(line["event"] == "kvstore_refused" for line in logs))
                await old.generate(range(20, 60))
                await index_matches(kvstore, old)
                assert live_ids(directory) == ["old"]
            await eventually(lambda: live_ids(directory) == ["new"])
    (told,) = [line for line in logs if line["event"] == "kvstore_refused"]
    assert "'new' serves model model-b as 'demo', but 'old' at" in told["detail"]


async def test_of_two_processes_with_one_name_the_later_one_stays_and_the_other_is_told() -> None:
    with structlog.testing.capture_logs() as logs:
        async with running_kvstore() as kvstore, directory_of(kvstore) as directory:
            heard: list[tuple[MemberChange, int]] = []
            directory.subscribe(lambda change, worker: heard.append((change, worker.info.epoch)))
            async with PublishingWorker(kvstore, make_worker("a", epoch=1, num_blocks=32)):
                await eventually(lambda: heard == [(MemberChange.JOINED, 1)])
                async with PublishingWorker(
                    kvstore, make_worker("a", epoch=2, num_blocks=32)
                ) as later:
                    await later.generate(range(20, 60))
                    await eventually(lambda: len(refusals(logs, "STALE_EPOCH")) >= 3)
                    await index_matches(kvstore, later)
                    assert heard[1:] == [(MemberChange.LEFT, 1), (MemberChange.JOINED, 2)]
                # Once the name is free, whoever waits for it has it.
                await eventually(lambda: heard[-1] == (MemberChange.JOINED, 1))
    told = [line["detail"] for line in logs if line["event"] == "kvstore_refused"]
    assert told[-1] == "worker 'a' comes with epoch 1, but epoch 2 is registered"


def refusals(logs: list[Any], reason: str = "LAYOUT_MISMATCH") -> list[Any]:
    return [line for line in logs if line.get("reason") == reason]


async def test_members_stay_known_while_the_kvstore_is_away() -> None:
    async with AsyncExitStack() as life:
        kvstore = await life.enter_async_context(running_kvstore())
        async with (
            PublishingWorker(kvstore, make_worker("a", num_blocks=8)),
            directory_of(kvstore, grace=0.1) as directory,
        ):
            await eventually(lambda: live_ids(directory) == ["a"])
            await life.aclose()
            await eventually(lambda: live_ids(directory) == [])
            assert known_ids(directory) == ["a"]


async def test_a_kvstore_that_stops_takes_nobody_for_gone() -> None:
    store = Store()
    async with AsyncExitStack() as life:
        kvstore = await life.enter_async_context(serving(store))
        async with PublishingWorker(kvstore, make_worker("a", num_blocks=8)):
            await eventually(lambda: any(member.stream for member in store.members))
            await life.aclose()
            assert [member.info.worker_id for member in store.members] == ["a"]


async def test_a_restarted_kvstore_is_rebuilt_from_snapshots() -> None:
    async with AsyncExitStack() as first_life:
        kvstore = await first_life.enter_async_context(running_kvstore())
        async with (
            directory_of(kvstore) as directory,
            PublishingWorker(kvstore, make_worker("a", num_blocks=64)) as a,
            PublishingWorker(kvstore, make_worker("b", num_blocks=64)) as b,
        ):
            heard: list[MemberChange] = []
            await a.generate(range(20, 60))
            await b.generate(range(20, 40))
            await index_matches(kvstore, a, b)
            await eventually(lambda: live_ids(directory) == ["a", "b"])
            directory.subscribe(lambda change, _: heard.append(change))
            await first_life.aclose()
            # What changes while nobody listens must be in the snapshot.
            await a.generate(range(100, 120))
            async with running_kvstore(port=int(kvstore.rpartition(":")[2])):
                await index_matches(kvstore, a, b)
                await eventually(lambda: live_ids(directory) == ["a", "b"])
            # Healthy workers never left, as far as the router is concerned.
            assert heard == [MemberChange.JOINED, MemberChange.JOINED]


async def test_a_worker_that_died_with_the_kvstore_is_forgotten_after_the_grace_time() -> None:
    async with AsyncExitStack() as first_life:
        kvstore = await first_life.enter_async_context(running_kvstore())
        async with (
            directory_of(kvstore, grace=3.0) as directory,
            PublishingWorker(kvstore, make_worker("a", num_blocks=8)),
        ):
            async with PublishingWorker(kvstore, make_worker("b", num_blocks=8)):
                await eventually(lambda: live_ids(directory) == ["a", "b"])
                await first_life.aclose()
            async with running_kvstore(port=int(kvstore.rpartition(":")[2])):
                await eventually(lambda: live_ids(directory) == ["a"])
                assert known_ids(directory) == ["a", "b"]
                await eventually(lambda: known_ids(directory) == ["a"])


async def test_a_broken_watch_goes_on_where_it_was() -> None:
    store = Store()
    for worker_id in ("a", "b"):
        await store.catalog.register(make_worker(worker_id))
    async with AsyncExitStack() as first_life:
        kvstore = await first_life.enter_async_context(serving(store))
        async with directory_of(kvstore) as directory:
            await eventually(lambda: live_ids(directory) == ["a", "b"])
            await first_life.aclose()
            store.members.drop("b")
            await store.catalog.register(make_worker("c"))
            async with serving(store, port=int(kvstore.rpartition(":")[2])):
                # Long before the grace time is over: the change that was missed says so.
                await eventually(lambda: live_ids(directory) == ["a", "c"])
                assert known_ids(directory) == ["a", "c"]


async def test_events_that_were_lost_are_made_up_for_by_a_snapshot() -> None:
    store = Store()
    async with (
        serving(store, heartbeat_interval=0.1) as kvstore,
        PublishingWorker(kvstore, make_worker("a", num_blocks=32)) as worker,
    ):
        await worker.generate(range(20, 60))
        await index_matches(kvstore, worker)
        member = store.members.get("a")
        assert member is not None
        # As if the last events had never come, and others had.
        member.last_sequence -= 3
        await store.index.remove("a", list(worker.cached)[:5])
        await index_matches(kvstore, worker)


async def test_an_index_that_is_wrong_without_a_gap_is_found_out_and_mended() -> None:
    store = Store()
    async with (
        serving(store, heartbeat_interval=0.05) as kvstore,
        PublishingWorker(kvstore, make_worker("a", num_blocks=32)) as worker,
    ):
        await worker.generate(range(20, 60))
        await index_matches(kvstore, worker)
        assert len(worker.cached) == 10
        await store.index.remove("a", sorted(worker.cached)[:3])
        await store.index.store("a", [make_block(1)])

        def counted(name: str, **labels: str) -> float | None:
            return store.metrics.registry.get_sample_value(f"pagemesh:index_{name}_total", labels)

        await eventually(lambda: counted("diverged_blocks", kind="missing") == 3)
        assert counted("diverged_blocks", kind="surplus") == 1
        await index_matches(kvstore, worker)
        num_digests = counted("digests") or 0
        await eventually(lambda: (counted("digests") or 0) > num_digests + 2)
        assert counted("divergences") == 1


async def test_busy_workers_and_lost_connections_give_no_false_alarm() -> None:
    store = Store()
    async with (
        serving(store, heartbeat_interval=0.02) as kvstore,
        PublishingWorker(kvstore, make_worker("a", num_blocks=16)) as worker,
    ):
        for start in range(0, 3000, 100):
            await worker.generate(range(start + 20, start + 50))
            if start % 1000 == 500:
                member = store.members.get("a")
                assert member is not None
                member.last_sequence -= 5
        digests = store.metrics.registry.get_sample_value("pagemesh:index_digests_total")
        divergences = store.metrics.registry.get_sample_value("pagemesh:index_divergences_total")
        assert digests
        assert divergences == 0


async def test_an_idle_worker_keeps_beating() -> None:
    store = Store()
    async with (
        serving(store, heartbeat_interval=0.05) as kvstore,
        PublishingWorker(kvstore, make_worker("a", num_blocks=8)),
    ):
        # Its first load and its empty snapshot are two events; all others are heartbeats.
        await eventually(lambda: any(member.last_sequence >= 6 for member in store.members))


@pytest.mark.parametrize("started", [False, True], ids=["never-started", "without-a-kvstore"])
async def test_closing_needs_no_kvstore(started: bool) -> None:
    directory = Directory(f"127.0.0.1:{free_port()}")
    if started:
        await directory.start()
    await directory.close()
    await directory.close()
    assert directory.workers() == ()
