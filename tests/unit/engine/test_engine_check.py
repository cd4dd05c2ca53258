"""Who waits for an engine learns that it will never answer, and is never told so of one that will."""

from __future__ import annotations

import threading

import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.engine.engine import EngineCore
from pagemesh.engine.runner import LayerProgress
from pagemesh.errors import DeviceLostError, InternalError, UnavailableError
from pagemesh.scheduler.batch import Batch, StepResult
from pagemesh.scheduler.request import Request
from pagemesh.scheduler.scheduler import Scheduler
from tests.fakes.engine import VOCAB_SIZE, FakeKv, FakeRunner
from tests.fakes.inbox import DEADLINE, Inbox
from tests.unit.scheduler.builders import make_info, make_request


class LosingRunner(FakeRunner):
    """Takes as long as it is told to for a batch, and then fails."""

    def __init__(self, kv: FakeKv) -> None:
        super().__init__(kv)
        self.entered = threading.Event()
        self.gate = threading.Event()

    def execute(self, batch: Batch, watch: LayerProgress | None = None) -> StepResult:
        self.entered.set()
        assert self.gate.wait(DEADLINE)
        raise RuntimeError("device lost")


def test_only_a_step_in_progress_can_hang_and_only_a_stopped_engine_is_dead() -> None:
    info = make_info()
    kv = FakeKv(info.layout, info.num_blocks)
    runner = LosingRunner(kv)
    scheduler = Scheduler(info, SchedulerConfig().on("cpu"), vocab_size=VOCAB_SIZE)
    engine = EngineCore(info, scheduler, runner, kv, step_timeout=0.0)
    engine.check()
    inbox = Inbox()
    engine.start(inbox)
    engine.submit(make_request("a", 4, max_tokens=1))
    assert runner.entered.wait(DEADLINE)
    with pytest.raises(InternalError, match=r"the engine hangs: .* of which 0 s are allowed"):
        engine.check()
    runner.gate.set()
    inbox.wait_for_end("a")
    engine.check()
    engine.stop()
    with pytest.raises(InternalError, match="the engine's thread has ended"):
        engine.check()


class LostRunner(FakeRunner):
    """Its device is lost in the first batch."""

    def execute(self, batch: Batch, watch: LayerProgress | None = None) -> StepResult:
        raise DeviceLostError("cuda:0 computes nothing any more: illegal memory access")


@pytest.mark.parametrize("overlaps", [False, True])
def test_an_engine_ends_with_its_device(overlaps: bool) -> None:
    info = make_info()
    kv = FakeKv(info.layout, info.num_blocks)
    scheduler = Scheduler(info, SchedulerConfig().on("cpu"), vocab_size=VOCAB_SIZE)
    engine = EngineCore(info, scheduler, LostRunner(kv), kv, overlaps=overlaps)
    inbox = Inbox()
    for name in ("a", "b"):
        engine.submit(make_request(name, 4))
    engine.start(inbox)
    inbox.wait_for_end("a", "b")
    for name in ("a", "b"):
        error = inbox.ends[name].error
        assert isinstance(error, DeviceLostError)
        assert "illegal memory access" in error.message
    with pytest.raises(UnavailableError):
        engine.submit(make_request("c", 4))
    engine.stop()


class LeakyScheduler(Scheduler):
    """Cannot plan a batch, nor give up a request that it has admitted."""

    def schedule(self) -> Batch:
        super().schedule()
        raise AssertionError("block 0 is not held")


def test_a_request_that_cannot_be_given_up_does_not_silence_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = make_info()
    kv = FakeKv(info.layout, info.num_blocks)
    scheduler = LeakyScheduler(info, SchedulerConfig().on("cpu"), vocab_size=VOCAB_SIZE)
    engine = EngineCore(info, scheduler, FakeRunner(kv), kv)

    def broken(request: Request) -> None:
        raise KeyError(request.request_id)

    monkeypatch.setattr(scheduler.requests, "_forget_if_over", broken)
    inbox = Inbox()
    for name in ("a", "b"):
        engine.submit(make_request(name, 4))
    engine.start(inbox)
    inbox.wait_for_end("a", "b")
    for name in ("a", "b"):
        assert str(inbox.ends[name].error) == "the engine was stopped by a bug"
    engine.stop()
