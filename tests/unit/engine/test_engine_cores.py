"""An engine keeps its cores from its first step to its last one, then lends them, and tells what it borrowed."""

from __future__ import annotations

import threading

from pagemesh.config import SchedulerConfig
from pagemesh.core.load import CoreTotals
from pagemesh.engine.engine import EngineCore
from pagemesh.engine.runner import LayerProgress
from pagemesh.engine.shared_cores import SharedCores
from pagemesh.scheduler.batch import Batch, StepResult
from pagemesh.scheduler.scheduler import Scheduler
from tests.fakes.engine import VOCAB_SIZE, FakeKv, FakeRunner
from tests.fakes.inbox import DEADLINE, Inbox
from tests.unit.scheduler.builders import make_info, make_request


class NotedCores(SharedCores):
    """Notes what happens instead of sharing anything."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.rests = threading.Semaphore(0)
        self.totals = CoreTotals()

    def rest(self) -> None:
        self.notes.append("rest")
        self.rests.release()

    def count(self) -> CoreTotals:
        return self.totals


class NotingRunner(FakeRunner):
    """Each step borrows half a core-second."""

    def __init__(self, kv: FakeKv, cores: NotedCores) -> None:
        super().__init__(kv)
        self._cores = cores

    def execute(self, batch: Batch, watch: LayerProgress | None = None) -> StepResult:
        self._cores.notes.append("step")
        self._cores.totals = CoreTotals(self._cores.totals.borrowed_seconds + 0.5)
        return super().execute(batch, watch)


def test_cores_are_lent_between_requests_and_not_between_steps() -> None:
    info = make_info()
    kv, cores, inbox = FakeKv(info.layout, info.num_blocks), NotedCores(), Inbox()
    scheduler = Scheduler(info, SchedulerConfig().on("cpu"), vocab_size=VOCAB_SIZE)
    engine = EngineCore(info, scheduler, NotingRunner(kv, cores), kv, cores=cores)
    engine.submit(make_request("a", 4, max_tokens=3))
    engine.start(inbox)
    inbox.wait_for_end("a")
    assert cores.rests.acquire(timeout=DEADLINE)
    assert cores.notes == ["step"] * 3 + ["rest"]
    assert engine.load().cores == CoreTotals(borrowed_seconds=1.5)
    engine.submit(make_request("b", 4, max_tokens=1))
    inbox.wait_for_end("b")
    assert cores.rests.acquire(timeout=DEADLINE)
    assert cores.notes[4:] == ["step", "rest"]
    engine.stop()
    assert cores.notes[-1] == "rest"


def test_an_engine_that_fails_lends_its_cores() -> None:
    info = make_info()
    kv, cores, inbox = FakeKv(info.layout, info.num_blocks), NotedCores(), Inbox()

    class BrokenScheduler(Scheduler):
        def schedule(self) -> Batch:
            raise RuntimeError("a bug")

    scheduler = BrokenScheduler(info, SchedulerConfig().on("cpu"), vocab_size=VOCAB_SIZE)
    engine = EngineCore(info, scheduler, NotingRunner(kv, cores), kv, cores=cores)
    engine.submit(make_request("a", 4))
    engine.start(inbox)
    inbox.wait_for_end("a")
    assert cores.rests.acquire(timeout=DEADLINE)
    engine.stop()
