"""Replicas and their Redis are killed, frozen and started again empty; workers and routers go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from redis import Redis

from pagemesh.membership.directory import Directory
from pagemesh.membership.roster import MemberChange
from pagemesh.v1 import kvstore_pb2
from tests.contract.kvstore_harness import (
    DEADLINE_S,
    PublishingWorker,
    connected,
    eventually,
    running_kvstore,
)
from tests.support.kvstore_process import KvStoreProcess, kvstore_process
from tests.support.valkey import Valkey
from tests.unit.kvstore.builders import make_worker

FINGERPRINT = "model-a"
HEARTBEAT_S = 1.0
"""A worker that is silent for three of them is dropped: on a busy machine, tenths of a second pass unnoticed."""


@pytest.fixture
def process(valkey: Valkey, tmp_path: Path) -> Iterator[KvStoreProcess]:
    arguments = ("--index", valkey.url, "--heartbeat-interval", str(HEARTBEAT_S))
    with kvstore_process(tmp_path / "kvstore.log", *arguments) as it:
        yield it


class Router:
    """What a router sees: its directory, and every change that it hears of."""

    def __init__(self, kvstore: str, grace: float) -> None:
        self.directory = Directory(kvstore, grace=grace, first=0)
        self.heard: list[tuple[MemberChange, str]] = []
        self.directory.subscribe(lambda change, it: self.heard.append((change, it.worker_id)))

    def live(self) -> list[str]:
        return sorted(it.worker_id for it in self.directory.workers() if it.live)

    def lost(self) -> list[str]:
        return [worker_id for change, worker_id in self.heard if change is MemberChange.LEFT]

    async def finds(self, *workers: PublishingWorker) -> None:
        """Wait until every cached block is found at the workers that have it, and nowhere else."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_S
        for block in set().union(*(worker.cached for worker in workers)):
            expected = {w.info.worker_id: 1 for w in workers if block in w.cached}
            while await self.directory.lookup([block], FINGERPRINT, timeout=1.0) != expected:
                assert loop.time() < deadline, "a block was not found in time"
                await asyncio.sleep(0.01)


@asynccontextmanager
async def router(kvstore: str, *, grace: float = 30.0) -> AsyncIterator[Router]:
    it = Router(kvstore, grace)
    await it.directory.start()
    try:
        yield it
    finally:
        await it.directory.close()


def worker(kvstore: str, worker_id: str, first: int = 0) -> PublishingWorker:
    return PublishingWorker(kvstore, make_worker(worker_id, num_blocks=32), first=first)


async def test_when_a_replica_is_killed_its_workers_and_routers_go_to_another_and_miss_nobody(
    valkey: Valkey, process: KvStoreProcess
) -> None:
    async with running_kvstore(index=valkey.url, heartbeat_interval=HEARTBEAT_S) as two:
        both = f"{process.address},{two}"
        async with (
            router(both) as mover,
            router(two) as settled,
            worker(both, "a") as a,
            worker(two, "b") as b,
        ):
            await a.generate(range(20, 29))
            await b.generate(range(20, 37))
            for it in (mover, settled):
                await eventually(lambda it=it: it.live() == ["a", "b"])  # type: ignore[misc]
                await it.finds(a, b)
            process.kill()
            await eventually(lambda: mover.directory.kvstore == two and mover.live() == ["a", "b"])
            await a.generate(range(60, 69))
            for it in (mover, settled):
                await it.finds(a, b)
                assert it.live() == ["a", "b"]
                assert it.lost() == []


@pytest.mark.product(most=1)
@pytest.mark.parametrize("is_emptied", [False, True], ids=["redis lasts", "redis is emptied"])
async def test_one_that_was_killed_is_told_only_what_changed_if_redis_has_the_rest(
    valkey: Valkey, process: KvStoreProcess, tmp_path: Path, *, is_emptied: bool
) -> None:
    port = process.address.rpartition(":")[2]
    arguments = ("--index", valkey.url, "--heartbeat-interval", str(HEARTBEAT_S), "--port", port)
    async with worker(process.address, "a") as a, router(process.address) as it:
        await a.generate(range(20, 120))
        await it.finds(a)
        before = set(a.cached)
        process.kill()
        # More than there is room for beside what is cached: some of that leaves.
        await a.generate(range(200, 260))
        num_new = len(a.cached - before)
        assert before - a.cached and num_new < len(before)
        if is_emptied:
            Redis.from_url(valkey.url).flushall()
        with kvstore_process(tmp_path / "again.log", *arguments) as again:
            await eventually(lambda: it.live() == ["a"])
            await it.finds(a)
            for gone in before - a.cached:
                assert await it.directory.lookup([gone], FINGERPRINT, timeout=5.0) == {}
            # At least one digest says that this is all.
            await eventually(lambda: again.metric("pagemesh:index_digests_total") >= 1)
            assert again.metric("pagemesh:index_divergences_total") == 0
            num_stored = again.metric("pagemesh:index_blocks_stored_total")
            assert num_stored == (len(a.cached) if is_emptied else num_new)


async def test_a_replica_that_froze_drops_nobody_when_it_thaws(
    valkey: Valkey, process: KvStoreProcess
) -> None:
    async with (
        running_kvstore(index=valkey.url, heartbeat_interval=HEARTBEAT_S) as two,
        router(two) as settled,
    ):
        both = f"{process.address},{two}"
        async with router(both) as mover, worker(both, "a") as a:
            await a.generate(range(20, 29))
            await eventually(lambda: (mover.live(), settled.live()) == (["a"], ["a"]))
            process.freeze()
            await eventually(lambda: mover.directory.kvstore == two and mover.live() == ["a"])
            await mover.finds(a)
            process.thaw()
            async with router(process.address) as returned:
                # It learns where its worker is before it can tell anybody that the stream broke.
                await eventually(lambda: returned.live() == ["a"])
                await a.generate(range(60, 69))
                for it in (mover, settled, returned):
                    await it.finds(a)
                    assert (it.live(), it.lost()) == (["a"], [])


async def test_while_redis_is_gone_nobody_is_forgotten_and_when_it_is_back_empty_all_is_as_before(
    valkey: Valkey,
) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        kvstores = [
            await enter(running_kvstore(index=valkey.url, heartbeat_interval=HEARTBEAT_S))
            for _ in range(2)
        ]
        one, two = [await enter(router(address)) for address in kvstores]
        a = await enter(worker(kvstores[0], "a"))
        b = await enter(worker(kvstores[1], "b"))
        await a.generate(range(20, 29))
        await b.generate(range(20, 37))
        for it in (one, two):
            await eventually(lambda it=it: it.live() == ["a", "b"])  # type: ignore[misc]
            await it.finds(a, b)
        valkey.kill()
        await lookups_fail(kvstores)
        assert await one.directory.lookup([bytes(16)], FINGERPRINT, timeout=5.0) is None
        # Whoever watches the replica of a worker goes on hearing of it.
        c = await enter(worker(kvstores[0], "c"))
        await c.generate(range(40, 49))
        await eventually(lambda: one.live() == ["a", "b", "c"] and is_measured(one, "c"))
        assert (two.live(), two.lost()) == (["a", "b"], [])
        valkey.start()
        for it in (one, two):
            await it.finds(a, b, c)
            await eventually(lambda it=it: it.live() == ["a", "b", "c"] and is_measured(it, "c"))  # type: ignore[misc]
            assert it.lost() == []


async def test_a_redis_that_froze_is_said_to_be_away_and_back_once_each(
    valkey: Valkey, process: KvStoreProcess
) -> None:
    async with router(process.address) as one, worker(process.address, "a") as a:
        await a.generate(range(20, 29))
        await one.finds(a)
        assert process.metric("pagemesh:index_store_up") == 1
        valkey.freeze()
        try:
            await lookups_fail([process.address])
            await eventually(lambda: process.metric("pagemesh:index_store_up") == 0)
            await a.generate(range(60, 69))
        finally:
            valkey.thaw()
        await one.finds(a)
        assert process.metric("pagemesh:index_store_up") == 1
        assert one.lost() == []
        said = [line["event"] for line in process.lines() if line["event"].startswith("store_")]
        assert said == ["store_away", "store_back"]


async def test_a_redis_that_lost_everything_while_nobody_looked_is_filled_again(
    valkey: Valkey,
) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        kvstores = [
            await enter(running_kvstore(index=valkey.url, heartbeat_interval=HEARTBEAT_S))
            for _ in range(2)
        ]
        one, two = [await enter(router(address)) for address in kvstores]
        a = await enter(worker(kvstores[0], "a"))
        await a.generate(range(20, 29))
        await two.finds(a)
        with Redis.from_url(valkey.url) as admin:
            admin.flushall()
        await two.finds(a)
        await one.finds(a)
        assert (one.live(), two.live(), one.lost(), two.lost()) == (["a"], ["a"], [], [])
        # One that starts now is told of all that, though nothing of it has changed.
        late = await enter(router(await enter(running_kvstore(index=valkey.url))))
        await eventually(lambda: is_measured(late, "a"))
        assert [it.load for it in late.directory.workers()] == [
            it.load for it in one.directory.workers()
        ]


def is_measured(it: Router, worker_id: str) -> bool:
    """Whether a worker that has computed something by now has told so."""
    return any(
        known.worker_id == worker_id and known.load.HasField("prefill_rate")
        for known in it.directory.workers()
    )


async def lookups_fail(kvstores: list[str]) -> None:
    """Wait until lookups are refused, and refused at once."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    for address in kvstores:
        async with connected(address) as stub:
            code: Callable[[], grpc.StatusCode] | None = None
            while code is None or code() is not grpc.StatusCode.UNAVAILABLE:
                assert loop.time() < deadline, "lookups did not fail in time"
                try:
                    await stub.Lookup(kvstore_pb2.LookupRequest(block_hashes=bytes(16)), timeout=5)
                except grpc.aio.AioRpcError as error:
                    code = error.code


async def test_a_redis_that_refuses_writes_is_away_until_it_takes_them(
    valkey: Valkey, process: KvStoreProcess
) -> None:
    async with router(process.address) as one, worker(process.address, "a") as a:
        await a.generate(range(20, 29))
        await one.finds(a)
        leaving = worker(process.address, "b")
        with Redis.from_url(valkey.url) as admin:
            async with leaving:
                await eventually(lambda: one.live() == ["a", "b"])
                admin.config_set("min-replicas-to-write", 1)
            try:
                await eventually(lambda: one.live() == ["a"])
                # The replica may drop it without having heard of Redis: then the next beat is refused.
                await eventually(lambda: process.metric("pagemesh:index_store_up") == 0)
                async with worker(process.address, "c") as c:
                    await c.generate(range(60, 69))
                    await eventually(lambda: one.live() == ["a", "c"])
                    # One that starts meanwhile starts.
                    async with running_kvstore(index=valkey.url):
                        pass
                    admin.config_set("min-replicas-to-write", 0)
                    await one.finds(a, c)
                    assert (one.live(), one.lost()) == (["a", "c"], ["b"])
            finally:
                admin.config_set("min-replicas-to-write", 0)
        said = [line["event"] for line in process.lines() if line["event"].startswith("store_")]
        assert said == ["store_away", "store_back"]
