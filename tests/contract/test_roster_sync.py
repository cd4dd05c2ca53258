"""A replica's loops beside a real Valkey: whatever fails in one of them, the next beat makes up for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from pagemesh.kvstore.changes import Change, ChangeLog
from pagemesh.kvstore.members import Members
from pagemesh.kvstore.redis_client import RedisStore
from pagemesh.kvstore.redis_roster import PREFIX, RedisRoster
from pagemesh.kvstore.roster_sync import RosterSync
from pagemesh.kvstore.shared_membership import SharedMembership
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2
from tests.contract.kvstore_harness import DEADLINE_S
from tests.fakes.clock import FakeClock
from tests.support.valkey import Valkey
from tests.unit.kvstore.builders import make_worker

PATIENCE_S = 5.0
PERIOD_S = 0.02


@pytest_asyncio.fixture
async def store(valkey: Valkey) -> AsyncIterator[RedisStore]:
    store = RedisStore(valkey.url, Metrics(), timeout=5.0)
    yield store
    await store.close()


class Replica:
    """What a keeper keeps in step."""

    def __init__(
        self, store: RedisStore, log: ChangeLog | None = None, *, name: str = "one"
    ) -> None:
        self.clock = FakeClock()
        self.log = log or ChangeLog()
        self.members = Members(self.log, self.clock, heartbeat_interval=1.0)
        self.roster = RedisRoster(store, name, PATIENCE_S)
        self.membership = SharedMembership(self.members, self.roster, self.clock, PATIENCE_S)
        self.keeper = RosterSync(
            store, self.roster, self.membership, self.members, self.log, PERIOD_S
        )

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        keeping = asyncio.create_task(self.keeper.run())
        try:
            yield
            assert not keeping.done()
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])


async def test_a_server_that_goes_away_again_while_all_is_restored_is_found_again(
    store: RedisStore,
) -> None:
    replica = Replica(store)
    restore = replica.membership.restore
    failures = [TimeoutError()]

    async def restored_while_another_command_fails() -> None:
        await restore()
        if failures:
            store.set_away(failures.pop())

    replica.membership.restore = restored_while_another_command_fails  # type: ignore[method-assign]
    await replica.keeper.beat()
    assert not store.answers
    await replica.keeper.beat()
    assert store.answers


async def test_why_a_server_cannot_be_used_is_said_once(valkey: Valkey, store: RedisStore) -> None:
    async def num_inspections() -> int:
        stats = await store.redis.info("commandstats")
        return int(stats["cmdstat_info"]["calls"])

    replica = Replica(store)
    await store.redis.replicaof("127.0.0.1", "1")
    store.set_away(TimeoutError())
    try:
        with capture_logs() as logs:
            before = await num_inspections()
            async with replica.kept(), asyncio.timeout(DEADLINE_S):
                # Each of these is one, too.
                num_asked = 1
                while await num_inspections() < before + num_asked + 4:
                    num_asked += 1
                    await asyncio.sleep(PERIOD_S)
    finally:
        await store.redis.replicaof("NO", "ONE")
    said = [line["event"] for line in logs]
    assert said == ["store_unusable"]


async def test_loads_that_could_not_be_told_do_not_end_the_loops(store: RedisStore) -> None:
    class FailingLog(ChangeLog):
        failures = 1

        def since(self, revision: int) -> Sequence[Change] | None:
            if self.failures:
                self.failures -= 1
                raise RuntimeError("for once")
            return super().since(revision)

    replica = Replica(store, FailingLog())
    await replica.keeper.beat()
    await replica.membership.join(make_worker("a"))
    stream = replica.members.attach("a", 1)
    async with replica.kept(), asyncio.timeout(DEADLINE_S):
        await asyncio.sleep(0)
        number = 0
        while not await store.redis.hget(f"{PREFIX}loads", "a"):
            number += 1
            load = types_pb2.WorkerLoad(running_request_count=number)
            replica.members.report_load(stream, load)
            await asyncio.sleep(PERIOD_S)


async def test_whoever_redis_objects_to_leaves_all_the_same_and_is_released_later(
    store: RedisStore,
) -> None:
    replica = Replica(store)
    await replica.keeper.beat()
    for worker_id in ("leaves", "is-silent"):
        await replica.membership.join(make_worker(worker_id))
    await replica.membership.refresh()
    stream = replica.members.attach("leaves", 1)
    owners = f"{PREFIX}owners"
    await store.redis.rename(owners, "aside")
    await store.redis.set(owners, "no hash")
    with pytest.raises(ResponseError):
        await replica.membership.leave(stream)
    replica.clock.advance(3.5)
    with pytest.raises(ResponseError):
        await replica.membership.expire("is-silent")
    assert list(replica.members) == []
    await store.redis.rename("aside", owners)
    await replica.membership.refresh()
    assert await store.redis.hgetall(owners) == {}


async def test_the_index_hears_of_a_worker_that_is_refused_late(store: RedisStore) -> None:
    one, two = Replica(store, name="one"), Replica(store, name="two")
    lost: list[str] = []

    async def note(worker_id: str) -> None:
        lost.append(worker_id)

    one.membership.on_lost(note)
    store.set_away(TimeoutError())
    await one.membership.join(make_worker("a", block_size=32))
    store.set_answers()
    await two.membership.join(make_worker("b"))
    await one.membership.restore()
    assert (list(one.members), lost) == ([], ["a"])


async def test_a_replica_starts_though_redis_objects_to_its_first_beat(store: RedisStore) -> None:
    replica = Replica(store)
    beat = f"{PREFIX}replicas"
    await store.redis.set(beat, "no sorted set")
    with capture_logs() as logs:
        await replica.keeper.start()
    assert [line["event"] for line in logs] == ["roster_failed"]
    await store.redis.delete(beat)
    await replica.keeper.beat()
    await replica.membership.join(make_worker("a"))
    assert await store.redis.hget(f"{PREFIX}owners", "a") == b"one"
