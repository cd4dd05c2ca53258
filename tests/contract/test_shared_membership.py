"""Decisions of two replicas that share a real Valkey, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from redis import Redis

from pagemesh.errors import FailedPreconditionError, UnavailableError
from pagemesh.kvstore.changes import ChangeLog, Joined, Left, Loaded
from pagemesh.kvstore.members import Members
from pagemesh.kvstore.redis_client import RedisStore
from pagemesh.kvstore.redis_roster import PREFIX, RedisRoster
from pagemesh.kvstore.shared_membership import SharedMembership
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2
from tests.fakes.clock import FakeClock
from tests.support.valkey import Valkey
from tests.unit.kvstore.builders import make_worker

PATIENCE_S = 5.0
PERIOD_S = 0.5


@dataclass
class Replica:
    """One replica without its loops: every step is taken by the test."""

    store: RedisStore
    name: str
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.log = ChangeLog()
        self.members = Members(self.log, self.clock, heartbeat_interval=1.0)
        self.roster = RedisRoster(self.store, self.name, PATIENCE_S)
        self.membership = SharedMembership(self.members, self.roster, self.clock, PATIENCE_S)
        self.moved: list[str] = []

        async def note(worker_id: str) -> None:
            self.moved.append(worker_id)

        self.membership.on_lost(note)

    async def start(self) -> None:
        await self.roster.beat(PERIOD_S)
        await self.membership.restore()

    async def back(self) -> None:
        """Redis is back."""
        await self.roster.beat(PERIOD_S)
        self.store.set_answers()
        await self.membership.restore()

    def own(self) -> list[str]:
        return [member.info.worker_id for member in self.members]

    def elsewhere(self) -> dict[str, str]:
        return {m.info.worker_id: m.owner for m in self.members.elsewhere}

    def told(self) -> list[str]:
        """What watchers were told, in order."""
        words = []
        for change in self.log.since(1) or ():
            match change.event:
                case Joined(info):
                    words.append(f"{info.worker_id} joined")
                case Left(worker_id):
                    words.append(f"{worker_id} left")
                case Loaded(worker_id, load):
                    words.append(f"{worker_id} runs {load.running_request_count}")
        return words


@pytest_asyncio.fixture
async def replicas(valkey: Valkey) -> AsyncIterator[tuple[Replica, Replica]]:
    async with AsyncExitStack() as resources:
        both = []
        for name in ("one", "two"):
            store = RedisStore(valkey.url, Metrics(), timeout=5.0)
            resources.push_async_callback(store.close)
            both.append(Replica(store, name))
            await both[-1].start()
        yield both[0], both[1]


async def test_a_worker_that_moves_is_taken_and_its_old_stream_speaks_for_nobody(
    replicas: tuple[Replica, Replica],
) -> None:
    one, two = replicas
    await one.membership.join(make_worker("a"))
    stream = one.members.attach("a", 1)
    one.members.report_load(stream, types_pb2.WorkerLoad(running_request_count=3))
    await one.roster.tell([("a", types_pb2.WorkerLoad(running_request_count=3))])
    await two.membership.refresh()
    assert two.elsewhere() == {"a": "one"}
    member, is_new = await two.membership.join(make_worker("a"))
    assert is_new
    assert member.load == types_pb2.WorkerLoad(running_request_count=3)
    # The old one notices late that the stream broke, before it has read anything.
    assert await one.membership.leave(stream)
    assert (one.own(), one.elsewhere(), one.moved) == ([], {"a": "two"}, ["a"])
    assert not await one.membership.leave(stream)
    await one.membership.refresh()
    await two.membership.refresh()
    assert (two.own(), two.elsewhere()) == (["a"], {})
    assert one.told() == two.told() == ["a joined", "a runs 3"]


async def test_a_replica_reads_that_its_worker_is_elsewhere_in_a_newer_incarnation(
    replicas: tuple[Replica, Replica],
) -> None:
    one, two = replicas
    await one.membership.join(make_worker("a", epoch=1))
    await two.membership.join(make_worker("a", epoch=2))
    await one.membership.refresh()
    assert (one.own(), one.elsewhere(), one.moved) == ([], {"a": "two"}, ["a"])
    assert one.told() == ["a joined", "a joined"]
    with pytest.raises(FailedPreconditionError) as refused:
        await one.membership.join(make_worker("a", epoch=1))
    assert refused.value.reason == "STALE_EPOCH"


async def test_a_silent_worker_is_dropped_where_it_published_and_then_everywhere(
    replicas: tuple[Replica, Replica],
) -> None:
    one, two = replicas
    await one.membership.join(make_worker("a"))
    await two.membership.refresh()
    one.clock.advance(3.5)
    assert await one.membership.expire("a")
    assert not await one.membership.expire("a")
    await two.membership.refresh()
    assert (two.elsewhere(), two.told()) == ({}, ["a joined", "a left"])


async def test_workers_are_remembered_as_long_as_redis_is_away_and_for_a_while_after(
    valkey: Valkey, replicas: tuple[Replica, Replica]
) -> None:
    one, two = replicas
    await one.membership.join(make_worker("a"))
    await two.membership.join(make_worker("b"))
    await two.membership.join(make_worker("c"))
    await one.membership.refresh()
    assert one.elsewhere() == {"b": "two", "c": "two"}
    valkey.kill()
    for _ in range(3):
        one.clock.advance(3600.0)
        with pytest.raises(UnavailableError):
            await one.membership.refresh()
    assert one.elsewhere() == {"b": "two", "c": "two"}
    # A replica alone decides about its own workers meanwhile, by what it knows of the others'.
    await one.membership.join(make_worker("d"))
    with pytest.raises(FailedPreconditionError) as refused:
        await one.membership.join(make_worker("b", address="127.0.0.1:9999"))
    assert refused.value.reason == "DUPLICATE_WORKER"
    valkey.start()
    await one.back()
    assert one.elsewhere() == {"b": "two", "c": "two"}
    one.clock.advance(PATIENCE_S - 0.1)
    await one.membership.refresh()
    assert one.elsewhere() == {"b": "two", "c": "two"}
    two.members.drop("c")
    await two.back()
    await one.membership.refresh()
    assert (two.own(), two.elsewhere()) == (["b"], {"a": "one", "d": "one"})
    one.clock.advance(0.2)
    await one.membership.refresh()
    assert one.elsewhere() == {"b": "two"}
    assert one.told()[-2:] == ["d joined", "c left"]


async def test_what_was_claimed_again_is_in_no_doubt_any_more(
    valkey: Valkey, replicas: tuple[Replica, Replica]
) -> None:
    one, two = replicas
    await two.membership.join(make_worker("b"))
    stream = two.members.attach("b", 1)
    two.members.report_load(stream, types_pb2.WorkerLoad(running_request_count=3))
    await one.membership.refresh()
    with Redis.from_url(valkey.url) as admin:
        admin.flushall()
    await one.membership.refresh()
    assert one.elsewhere() == {"b": "two"}
    await two.membership.refresh()
    await one.membership.refresh()
    assert one.told() == ["b joined", "b runs 3"]
    assert await two.membership.leave(stream)
    await one.membership.refresh()
    assert one.elsewhere() == {}


async def test_a_worker_that_left_while_redis_was_away_is_released_later(
    valkey: Valkey, replicas: tuple[Replica, Replica]
) -> None:
    one, two = replicas
    await one.membership.join(make_worker("a"))
    stream = one.members.attach("a", 1)
    await two.membership.refresh()
    one.store.set_away(TimeoutError())
    assert await one.membership.leave(stream)
    assert one.own() == []
    await two.membership.refresh()
    assert two.elsewhere() == {"a": "one"}
    one.store.set_answers()
    await one.membership.restore()
    await two.membership.refresh()
    assert two.elsewhere() == {}


async def test_a_newer_incarnation_that_joined_while_redis_was_away_is_claimed_later(
    replicas: tuple[Replica, Replica],
) -> None:
    one, two = replicas
    for worker_id in ("here", "moved"):
        await one.membership.join(make_worker(worker_id, epoch=1))
    one.store.set_away(TimeoutError())
    two.store.set_away(TimeoutError())
    await one.membership.join(make_worker("here", epoch=2))
    await two.membership.join(make_worker("moved", epoch=2))
    for replica in replicas:
        replica.store.set_answers()
        await replica.membership.restore()
    await one.membership.refresh()
    assert (one.own(), two.own()) == (["here"], ["moved"])
    assert {m.info.worker_id: m.info.epoch for m in two.members.elsewhere} == {"here": 2}
    assert {m.info.worker_id: m.info.epoch for m in one.members.elsewhere} == {"moved": 2}


async def test_who_could_not_have_joined_beside_the_others_has_to_go_when_that_is_known(
    replicas: tuple[Replica, Replica],
) -> None:
    one, two = replicas
    one.store.set_away(TimeoutError())
    await one.membership.join(make_worker("a", block_size=32))
    await two.membership.join(make_worker("b"))
    one.store.set_answers()
    await one.membership.restore()
    assert (one.own(), one.elsewhere()) == ([], {"b": "two"})


async def test_the_workers_of_a_replica_without_beats_are_gone_unless_nobody_could_beat(
    valkey: Valkey, replicas: tuple[Replica, Replica]
) -> None:
    one, two = replicas
    await two.membership.join(make_worker("b"))
    with Redis.from_url(valkey.url, decode_responses=True) as admin:

        def pass_time(seconds: float, since_beat: float) -> None:
            """As if the last beats had been so long ago."""
            for name in ("one", "two"):
                admin.zincrby(f"{PREFIX}replicas", -1000 * seconds, name)
            admin.decrby(f"{PREFIX}beat", round(1000 * since_beat))

        pass_time(60.0, since_beat=60.0)
        await one.roster.beat(PERIOD_S)
        await one.membership.refresh()
        assert one.elsewhere() == {"b": "two"}
        pass_time(PATIENCE_S + 0.1, since_beat=0.0)
        await one.roster.beat(PERIOD_S)
        await one.membership.refresh()
        assert one.elsewhere() == {}
        # Thawed, the other one finds its worker forgotten, and claims it again.
        await two.roster.beat(PERIOD_S)
        await two.membership.refresh()
        await one.membership.refresh()
        assert one.elsewhere() == {"b": "two"}


async def test_what_redis_keeps_is_bounded_by_the_workers_that_there_are(
    valkey: Valkey, replicas: tuple[Replica, Replica]
) -> None:
    one, _ = replicas
    for epoch in range(1, 20):
        await one.membership.join(make_worker("a", epoch=epoch))
        load = types_pb2.WorkerLoad(running_request_count=epoch)
        await one.roster.tell([("a", load)])
    with Redis.from_url(valkey.url, decode_responses=True) as admin:
        sizes = {
            key.removeprefix(PREFIX): admin.hlen(key)
            for key in admin.scan_iter()
            if admin.type(key) == "hash"
        }
        assert sizes == {"owners": 1, "epochs": 1, "infos": 1, "kinds": 1, "loads": 1}
        assert admin.zcard(f"{PREFIX}load_order") == 1
        assert admin.xlen(f"{PREFIX}news") == 1
        stream = one.members.attach("a", 19)
        assert await one.membership.leave(stream)
        assert [key for key in admin.scan_iter() if admin.type(key) == "hash"] == []


@pytest.mark.parametrize(
    ("info", "other", "reason"),
    [
        pytest.param(
            make_worker("a", fingerprint="x"),
            make_worker("b", fingerprint="y"),
            "MODEL_MISMATCH",
            id="another-model",
        ),
        pytest.param(
            make_worker("a", block_size=16),
            make_worker("b", block_size=32),
            "LAYOUT_MISMATCH",
            id="another-layout",
        ),
    ],
)
async def test_of_two_that_cannot_be_beside_each_other_one_joins_though_both_come_at_once(
    replicas: tuple[Replica, Replica],
    info: types_pb2.WorkerInfo,
    other: types_pb2.WorkerInfo,
    reason: str,
) -> None:
    one, two = replicas
    for _ in range(20):
        # Neither has read of the other: to each by itself, its worker is the first of its model.
        joining = (one.membership.join(info), two.membership.join(other))
        answers = await asyncio.gather(*joining, return_exceptions=True)
        (refused,) = [answer for answer in answers if isinstance(answer, FailedPreconditionError)]
        assert refused.reason == reason
        ((winner, worker_id),) = [(each, name) for each in replicas for name in each.own()]
        assert await winner.membership.leave(winner.members.attach(worker_id, 1))
