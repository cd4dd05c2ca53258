"""The kvstore against a plain model, under lost, repeated, reordered and stale events."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagemesh.errors import FailedPreconditionError
from pagemesh.kvstore.events import Beat, Cleared, Removed, Stored, WorkerEvent
from pagemesh.kvstore.feed import Feed
from pagemesh.v1 import types_pb2
from tests.unit.kvstore.builders import Store, make_block, make_worker

WORKER_IDS = ("a", "b", "c")
NUM_BLOCKS = 8

worker_ids = st.sampled_from(WORKER_IDS)
blocks = st.sets(st.integers(0, NUM_BLOCKS - 1).map(make_block), min_size=1)
Result = TypeVar("Result")


def done(call: Coroutine[Any, Any, Result]) -> Result:
    """Result of a coroutine that never waits."""
    try:
        call.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise AssertionError("it waited")


@dataclass
class Worker:
    """A worker, the events that are on their way from it, and what the kvstore should believe."""

    epoch: int
    stream: Feed
    cache: set[bytes] = field(default_factory=set)
    num_sent: int = 0
    on_the_way: list[tuple[int, WorkerEvent]] = field(default_factory=list)
    delivered: list[tuple[int, WorkerEvent]] = field(default_factory=list)
    was_asked: bool = False

    believed: set[bytes] | None = field(default_factory=set)
    """None behind a gap."""
    last_sequence: int = 0

    def send(self, event: WorkerEvent) -> None:
        self.num_sent += 1
        self.on_the_way.append((self.num_sent, event))

    def send_snapshot(self) -> None:
        self.send(Cleared())
        self.send(Stored(sorted(self.cache)))
        self.was_asked = False

    def believe(self, sequence: int, event: WorkerEvent) -> None:
        """What an event that arrives now should change."""
        if sequence <= self.last_sequence:
            return
        if sequence > self.last_sequence + 1:
            self.believed = None
        self.last_sequence = sequence
        match event:
            case Cleared():
                self.believed = set()
            case Stored(block_hashes) if self.believed is not None:
                self.believed |= set(block_hashes)
            case Removed(block_hashes) if self.believed is not None:
                self.believed -= set(block_hashes)
            case _:
                pass


class KvStoreMachine(RuleBasedStateMachine):
    """Three workers whose events get to the kvstore in whatever way."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.workers: dict[str, Worker] = {}
        self.replaced: list[Feed] = []
        self.epochs = dict.fromkeys(WORKER_IDS, 0)

    def deliver(self, worker: Worker, position: int) -> None:
        sequence, event = worker.on_the_way.pop(position)
        worker.delivered.append((sequence, event))
        worker.was_asked |= done(self.store.catalog.publish(worker.stream, sequence, event))
        worker.believe(sequence, event)

    def forget(self, worker_id: str) -> None:
        """The kvstore dropped a worker: whatever still comes on its stream is stale."""
        self.replaced.append(self.workers.pop(worker_id).stream)

    @rule(worker_id=worker_ids)
    def start_incarnation(self, worker_id: str) -> None:
        if worker_id in self.workers:
            self.forget(worker_id)
        self.epochs[worker_id] += 1
        epoch = self.epochs[worker_id]
        info = make_worker(worker_id, epoch=epoch, num_blocks=NUM_BLOCKS)
        done(self.store.catalog.register(info))
        stream = done(self.store.catalog.open_stream(worker_id, epoch))
        self.workers[worker_id] = Worker(epoch, stream)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        worker_id, worker = self.draw(data)
        info = make_worker(worker_id, epoch=worker.epoch, num_blocks=NUM_BLOCKS)
        done(self.store.catalog.register(info))
        self.replaced.append(worker.stream)
        worker.stream = done(self.store.catalog.open_stream(worker_id, worker.epoch))
        worker.on_the_way.clear()
        worker.send_snapshot()

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), new=blocks)
    def store_blocks(self, data: st.DataObject, new: set[bytes]) -> None:
        _, worker = self.draw(data)
        worker.cache |= new
        worker.send(Stored(sorted(new)))

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), old=blocks)
    def remove_blocks(self, data: st.DataObject, old: set[bytes]) -> None:
        _, worker = self.draw(data)
        worker.cache -= old
        worker.send(Removed(sorted(old)))

    @precondition(lambda self: any(w.on_the_way for w in self.workers.values()))
    @rule(data=st.data())
    def deliver_next(self, data: st.DataObject) -> None:
        self.deliver(self.draw_sending(data), 0)

    @precondition(lambda self: any(w.on_the_way for w in self.workers.values()))
    @rule(data=st.data())
    def deliver_out_of_order(self, data: st.DataObject) -> None:
        self.deliver(self.draw_sending(data), -1)

    @precondition(lambda self: any(w.on_the_way for w in self.workers.values()))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.draw_sending(data).on_the_way.pop(0)

    @precondition(lambda self: any(w.delivered for w in self.workers.values()))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([w for w in self.workers.values() if w.delivered]))
        sequence, event = data.draw(st.sampled_from(worker.delivered))
        assert not done(self.store.catalog.publish(worker.stream, sequence, event))

    @precondition(lambda self: self.replaced)
    @rule(data=st.data(), ends=st.booleans())
    def speak_for_the_past(self, data: st.DataObject, ends: bool) -> None:
        stream = data.draw(st.sampled_from(self.replaced))
        if ends:
            done(self.store.catalog.close_stream(stream))
            return
        with pytest.raises(FailedPreconditionError):
            done(self.store.catalog.publish(stream, 1000, Stored([make_block(0)])))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def break_stream(self, data: st.DataObject) -> None:
        worker_id, worker = self.draw(data)
        done(self.store.catalog.close_stream(worker.stream))
        self.forget(worker_id)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def fall_silent(self, data: st.DataObject) -> None:
        silent_id, _ = self.draw(data)
        self.store.clock.advance(3.5)
        for worker_id, worker in self.workers.items():
            if worker_id != silent_id:
                # A repeated event is a sign of life too.
                done(self.store.catalog.publish(worker.stream, 0, IDLE))
        done(self.store.catalog.drop_silent())
        self.forget(silent_id)

    @rule()
    def tidy(self) -> None:
        done(self.store.index.tidy(3))

    @rule()
    def settle(self) -> None:
        """Nothing is lost any more: the kvstore comes to know exactly what there is."""
        for worker_id, worker in self.workers.items():
            worker.send(IDLE)
            while worker.on_the_way:
                self.deliver(worker, 0)
                if worker.was_asked:
                    worker.send_snapshot()
            assert done(self.store.catalog.blocks(worker_id)) == worker.cache

    @invariant()
    def believes_what_the_events_say(self) -> None:
        catalog = self.store.catalog
        assert {m.info.worker_id for m in catalog.members()} == set(self.workers)
        for worker_id, worker in self.workers.items():
            assert done(catalog.blocks(worker_id)) == (worker.believed or set())
        self.store.index.check_integrity()

    @invariant()
    def finds_the_longest_prefixes(self) -> None:
        chain = [make_block(number) for number in range(NUM_BLOCKS)]
        expected = {}
        for worker_id, worker in self.workers.items():
            held = [block in (worker.believed or set()) for block in chain]
            if held[0]:
                expected[worker_id] = [*held, False].index(False)
        assert done(self.store.catalog.lookup(chain, "model-a")) == expected

    def draw(self, data: st.DataObject) -> tuple[str, Worker]:
        return data.draw(st.sampled_from(sorted(self.workers.items(), key=lambda item: item[0])))

    def draw_sending(self, data: st.DataObject) -> Worker:
        return data.draw(st.sampled_from([w for w in self.workers.values() if w.on_the_way]))


IDLE = Beat(types_pb2.WorkerLoad())

TestKvStore = KvStoreMachine.TestCase
TestKvStore.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
