"""The kvstore against a plain model, under lost, repeated, reordered and stale events."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagemesh.errors import FailedPreconditionError
from pagemesh.kvstore.changes import Beat, Cleared, Digested, Removed, Resumed, Stored
from pagemesh.kvstore.feed import MOST_PATIENCE, Feed
from pagemesh.kvstore.index import BlockIndex
from pagemesh.kvstore.memory_index import MemoryIndex
from pagemesh.v1 import types_pb2
from tests.unit.kvstore.believed_worker import Counted, Worker, digest_of
from tests.unit.kvstore.builders import Store, make_block, make_worker

WORKER_IDS = ("a", "b")
NUM_BLOCKS = 6

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


def same(index: BlockIndex) -> BlockIndex:
    """The index of the next process, kept in the same memory."""
    return index


class KvStoreMachine(RuleBasedStateMachine):
    """Two workers whose events get to the kvstore in whatever way."""

    def __init__(self, store: Store | None = None) -> None:
        super().__init__()
        self.store = store or Store()
        self.workers: dict[str, Worker] = {}
        self.replaced: list[Feed] = []
        self.epochs = dict.fromkeys(WORKER_IDS, 0)
        self.counted = Counted()
        self.reopen = same
        for worker_id in WORKER_IDS:
            self.start(worker_id)

    def do(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Result of a call of the kvstore."""
        return done(call)

    def settle(self, worker_id: str) -> None:
        """Nothing is lost any more: the kvstore comes to know exactly what there is."""
        worker = self.workers[worker_id]
        worker.send(IDLE)
        for _ in range(MOST_PATIENCE):
            worker.send_digest()
            num_snapshots = 0
            while worker.on_the_way:
                self.deliver(worker, 0)
                if worker.was_asked:
                    worker.send_snapshot()
                    num_snapshots += 1
                    assert num_snapshots < 4, "snapshots do not end the wish for snapshots"
            if not worker.was_tampered_with:
                break
        assert self.do(self.store.catalog.blocks(worker_id)) == worker.cache

    def deliver(self, worker: Worker, position: int) -> None:
        sequence, event = worker.on_the_way.pop(position)
        worker.delivered.append((sequence, event))
        is_new = sequence > worker.last_sequence
        was_asked = self.do(self.store.catalog.publish(worker.feed, sequence, event))
        worker.was_asked |= was_asked
        worker.believe(sequence, event)
        if is_new and isinstance(event, Resumed):
            assert was_asked == (worker.believed is None)
        if is_new and isinstance(event, Digested) and worker.believed is not None:
            worker.compare(event.digest, was_asked, self.counted)

    def forget(self, worker_id: str) -> None:
        """The kvstore dropped a worker: whatever still comes on its stream is stale."""
        self.replaced.append(self.workers.pop(worker_id).feed)

    @rule(worker_id=worker_ids)
    def start(self, worker_id: str) -> None:
        """A worker starts, for the first time or anew."""
        if worker_id in self.workers:
            self.forget(worker_id)
        self.epochs[worker_id] += 1
        epoch = self.epochs[worker_id]
        info = make_worker(worker_id, epoch=epoch, num_blocks=NUM_BLOCKS)
        self.do(self.store.catalog.register(info))
        feed = self.do(self.store.catalog.open_stream(worker_id, epoch))
        self.workers[worker_id] = Worker(epoch, feed)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        worker_id, worker = draw(data, self.workers)
        info = make_worker(worker_id, epoch=worker.epoch, num_blocks=NUM_BLOCKS)
        self.do(self.store.catalog.register(info))
        self.replaced.append(worker.feed)
        worker.feed = self.do(self.store.catalog.open_stream(worker_id, worker.epoch))
        worker.doubt()
        worker.on_the_way.clear()
        if data.draw(st.booleans(), "begins anew"):
            worker.send_snapshot()

    @rule(data=st.data())
    def restart_the_kvstore(self, data: st.DataObject) -> None:
        """What its index is kept in lasts, and so do what others know of its members."""
        index = self.reopen(self.store.index)
        self.store, self.counted = Store(clock=self.store.clock, index=index), Counted()
        self.replaced.clear()
        for worker_id, worker in self.workers.items():
            info = make_worker(worker_id, epoch=worker.epoch, num_blocks=NUM_BLOCKS)
            self.store.members.elsewhere.see(info, "the former one")
            assert self.do(self.store.catalog.register(info)).kept == worker.kept
            # An answer may be lost.
            assert self.do(self.store.catalog.register(info)).kept == worker.kept
            worker.feed = self.do(self.store.catalog.open_stream(worker_id, worker.epoch))
            worker.last_sequence, worker.has_moved, worker.was_asked = 0, True, False
            worker.is_differing, worker.gathered = False, None
            worker.on_the_way.clear()
            worker.delivered.clear()
            match data.draw(st.sampled_from(["resumes", "resumes", "begins anew", "goes on"])):
                case "resumes" if worker.believed is not None:
                    # As one does that remembers what it held when the kvstore last heard of it.
                    kept = worker.believed
                    worker.send(Resumed(worker.kept))
                    worker.send(Removed(sorted(kept - worker.cache)))
                    worker.send(Stored(sorted(worker.cache - kept)))
                case "begins anew":
                    worker.send_snapshot()

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), names=blocks)
    def change_cache(self, data: st.DataObject, names: set[bytes]) -> None:
        _, worker = draw(data, self.workers)
        match data.draw(st.sampled_from(["store", "store", "remove", "clear"])):
            case "store":
                worker.cache |= names
                worker.send(Stored(sorted(names)))
            case "remove":
                worker.cache -= names
                worker.send(Removed(sorted(names)))
            case "clear":
                worker.cache.clear()
                worker.send(Cleared())

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def speak(self, data: st.DataObject) -> None:
        """A heartbeat, a digest, what the worker holds to begin with, or what the kvstore asked for."""
        _, worker = draw(data, self.workers)
        if worker.was_asked:
            if data.draw(st.booleans(), "takes back"):
                # Its engine needs a while for the snapshot.
                worker.send(Cleared())
                worker.send(IDLE)
            worker.send_snapshot()
            return
        match data.draw(st.sampled_from(["load", "digest", "holding"])):
            case "load":
                worker.send(IDLE)
            case "digest":
                worker.send_digest()
            case "holding":
                worker.send(Resumed(digest_of(worker.cache)))

    @precondition(lambda self: any(w.on_the_way for w in self.workers.values()))
    @rule(data=st.data())
    def deliver_some(self, data: st.DataObject) -> None:
        """Events arrive: in order, before others that were sent earlier, or not at all."""
        worker = data.draw(st.sampled_from([w for w in self.workers.values() if w.on_the_way]))
        for _ in range(data.draw(st.integers(1, len(worker.on_the_way)))):
            match data.draw(st.sampled_from(["next", "next", "next", "next", "last", "lose"])):
                case "next":
                    self.deliver(worker, 0)
                case "last":
                    self.deliver(worker, -1)
                case "lose":
                    worker.on_the_way.pop(0)

    @precondition(lambda self: any(w.delivered for w in self.workers.values()))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([w for w in self.workers.values() if w.delivered]))
        sequence, event = data.draw(st.sampled_from(worker.delivered))
        assert not self.do(self.store.catalog.publish(worker.feed, sequence, event))

    @precondition(lambda self: any(w.is_known for w in self.workers.values()))
    @rule(data=st.data(), surplus=blocks, missing=blocks)
    def tamper_with_the_index(
        self, data: st.DataObject, surplus: set[bytes], missing: set[bytes]
    ) -> None:
        known = [item for item in sorted(self.workers.items()) if item[1].is_known]
        worker_id, worker = data.draw(st.sampled_from(known))
        assert worker.believed is not None
        self.do(self.store.index.store(worker_id, sorted(surplus)))
        self.do(self.store.index.remove(worker_id, sorted(missing)))
        worker.believed = (worker.believed | surplus) - missing
        worker.was_tampered_with = True
        if data.draw(st.booleans(), "is noticed at once"):
            self.settle(worker_id)

    @precondition(lambda self: self.replaced)
    @rule(data=st.data(), ends=st.booleans())
    def speak_for_the_past(self, data: st.DataObject, ends: bool) -> None:
        feed = data.draw(st.sampled_from(self.replaced))
        if ends:
            self.do(self.store.catalog.close_stream(feed))
            return
        with pytest.raises(FailedPreconditionError):
            self.do(self.store.catalog.publish(feed, 1000, Stored([make_block(0)])))

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), is_silent=st.booleans())
    def leave(self, data: st.DataObject, is_silent: bool) -> None:
        left_id, left = draw(data, self.workers)
        if is_silent:
            self.store.clock.advance(3.5)
            for worker_id, worker in self.workers.items():
                if worker_id != left_id:
                    # A repeated event is a sign of life too.
                    self.do(self.store.catalog.publish(worker.feed, 0, IDLE))
            self.do(self.store.catalog.drop_silent())
        else:
            self.do(self.store.catalog.close_stream(left.feed))
        self.forget(left_id)

    @rule()
    def tidy(self) -> None:
        self.do(self.store.index.tidy(3))

    @rule()
    def settle_all(self) -> None:
        for worker_id in self.workers:
            self.settle(worker_id)

    @invariant()
    def believes_what_the_events_say(self) -> None:
        catalog = self.store.catalog
        assert {m.info.worker_id for m in catalog.members()} == set(self.workers)
        for worker_id, worker in self.workers.items():
            assert self.do(catalog.blocks(worker_id)) == (worker.believed or set())
        if isinstance(self.store.index, MemoryIndex):
            self.store.index.check_integrity()

    @invariant()
    def counts_what_was_wrong(self) -> None:
        def counted(name: str, **labels: str) -> float | None:
            return self.store.metrics.registry.get_sample_value(f"pagemesh:index_{name}", labels)

        assert self.counted == Counted(
            int(counted("digests_total") or 0),
            int(counted("divergences_total") or 0),
            int(counted("diverged_blocks_total", kind="missing") or 0),
            int(counted("diverged_blocks_total", kind="surplus") or 0),
        )

    @invariant()
    def finds_the_longest_prefixes(self) -> None:
        chain = [make_block(number) for number in range(NUM_BLOCKS)]
        expected = {}
        for worker_id, worker in self.workers.items():
            held = [block in (worker.believed or set()) for block in chain]
            if held[0]:
                expected[worker_id] = [*held, False].index(False)
        assert self.do(self.store.catalog.lookup(chain, "model-a")) == expected


def draw(data: st.DataObject, workers: dict[str, Worker]) -> tuple[str, Worker]:
    return data.draw(st.sampled_from(sorted(workers.items(), key=lambda item: item[0])))


IDLE = Beat(types_pb2.WorkerLoad())

TestKvStore = KvStoreMachine.TestCase
TestKvStore.settings = settings(max_examples=100, stateful_step_count=30, derandomize=True)
