"""The engine thread: commands in order, deliveries, failures at its boundaries, stopping."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace

import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import Engine, StepOutput
from pagemesh.core.load import EngineLoad
from pagemesh.core.request import EngineRequest, FinishReason
from pagemesh.engine.engine import EngineCore
from pagemesh.engine.runner import LayerProgress
from pagemesh.errors import InternalError, InvalidRequestError, UnavailableError
from pagemesh.scheduler.batch import Batch, StepResult
from pagemesh.scheduler.scheduler import Scheduler
from tests.fakes.engine import VOCAB_SIZE, FakeEngine, FakeKv, FakeRunner, expected_tokens
from tests.fakes.inbox import DEADLINE, Inbox
from tests.support.kv_bytes import read_kv
from tests.unit.scheduler.builders import FixedGrowth, make_info, make_request


class GatedRunner(FakeRunner):
    """Computes a batch only when told so; can be told to fail."""

    def __init__(self, kv: FakeKv) -> None:
        super().__init__(kv)
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.error: Exception | None = None
        self.num_extra_tokens = 0

    def execute(self, batch: Batch, watch: LayerProgress | None = None) -> StepResult:
        self.entered.release()
        assert self.gate.acquire(timeout=DEADLINE)
        if self.error is not None:
            raise self.error
        result = super().execute(batch, watch)
        return replace(result, token_ids=[*result.token_ids, *[0] * self.num_extra_tokens])


class CountingScheduler(Scheduler):
    """Counts how often the engine asked for a batch."""

    num_schedules = 0

    def schedule(self) -> Batch:
        self.num_schedules += 1
        return super().schedule()


class Fixture:
    """An engine whose steps are in the test's hand."""

    def __init__(self, *, overlaps: bool) -> None:
        self.overlaps = overlaps
        info = make_info()
        self.kv = FakeKv(info.layout, info.num_blocks)
        self.runner = GatedRunner(self.kv)
        self.scheduler = CountingScheduler(
            info, SchedulerConfig().on("cpu"), vocab_size=VOCAB_SIZE, forecast=FixedGrowth(0)
        )
        self.engine = EngineCore(info, self.scheduler, self.runner, self.kv, overlaps=overlaps)
        self.inbox = Inbox()

    def start(self) -> None:
        self.engine.start(self.inbox)

    def wait_until_computing(self) -> None:
        assert self.runner.entered.acquire(timeout=DEADLINE)

    def let_run(self, num_steps: int = 1000) -> None:
        self.runner.gate.release(num_steps)

    def settle(self) -> None:
        """Wait until every command queued so far was run."""
        self.engine.pin("settle", []).result(DEADLINE)
        self.engine.release("settle")
        self.engine.pin("settle", []).result(DEADLINE)
        self.engine.release("settle")


@pytest.fixture(params=[False, True], ids=["step by step", "overlapped"])
def gated(request: pytest.FixtureRequest) -> Iterator[Fixture]:
    fixture = Fixture(overlaps=request.param)
    yield fixture
    fixture.let_run()
    fixture.engine.stop()
    fixture.scheduler.requests.check_integrity()


def test_the_core_and_the_fake_implement_the_interface() -> None:
    engine: Engine = FakeEngine()
    assert engine.info.num_blocks == 64
    assert engine.load() == EngineLoad(num_free_blocks=64)
    engine.stop()


def test_requests_of_many_threads_are_answered_with_the_right_tokens() -> None:
    engine = FakeEngine(num_blocks=12, block_size=4, max_model_len=40)
    inbox = Inbox()
    engine.start(inbox)
    requests = [make_request(f"r{i}", 5 + i % 7, max_tokens=10) for i in range(24)]
    threads = [threading.Thread(target=engine.submit, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    inbox.wait_for_end(*(request.request_id for request in requests))
    for request in requests:
        expected = expected_tokens(request.prompt_token_ids, 10)
        assert tuple(inbox.tokens[request.request_id]) == expected
    engine.stop()
    assert engine.num_free_blocks == 12
    engine.scheduler.requests.check_integrity()


def test_commands_queued_before_the_start_are_run_in_order(gated: Fixture) -> None:
    gated.engine.submit(make_request("a", 4))
    gated.engine.cancel("a")
    gated.engine.submit(make_request("b", 4, max_tokens=1))
    gated.let_run()
    gated.start()
    gated.inbox.wait_for_end("a", "b")
    assert gated.inbox.ends["a"].finish_reason is FinishReason.CANCELLED
    assert gated.inbox.ends["b"].finish_reason is FinishReason.LENGTH


def test_an_idle_engine_does_nothing_until_it_is_asked(gated: Fixture) -> None:
    gated.start()
    gated.let_run()
    gated.engine.submit(make_request("a", 4, max_tokens=1))
    gated.inbox.wait_for_end("a")
    gated.settle()
    before = gated.scheduler.num_schedules
    gated.settle()
    # The four commands wake it up at most four times.
    assert gated.scheduler.num_schedules - before <= 4


def test_grants_do_not_wait_for_the_step_that_was_planned_with_them(gated: Fixture) -> None:
    gated.engine.submit(make_request("local", 4, max_tokens=1))
    gated.engine.submit(make_request("import", 4, await_kv=True))
    gated.start()
    gated.inbox.wait_for_grant("import")
    assert gated.inbox.ends == {}
    gated.engine.finish_import("import", 0)


def test_an_imports_first_token_is_delivered_without_a_model_step(gated: Fixture) -> None:
    gated.start()
    gated.engine.submit(make_request("a", 4, await_kv=True))
    gated.inbox.wait_for_grant("a")
    gated.engine.first_token("a", 123)
    gated.inbox.wait_for_tokens("a", 1)
    assert gated.inbox.tokens["a"] == [123]
    gated.engine.cancel("a")
    gated.engine.finish_import("a", 0)
    gated.inbox.wait_for_end("a")


def test_cancelling_takes_effect_after_the_step_in_progress(gated: Fixture) -> None:
    gated.start()
    gated.engine.submit(make_request("a", 4, max_tokens=50))
    gated.wait_until_computing()
    gated.engine.cancel("a")
    assert gated.inbox.ends == {}
    gated.let_run(1)
    gated.inbox.wait_for_end("a")
    assert gated.inbox.ends["a"].finish_reason is FinishReason.CANCELLED
    # A step that was launched behind that one still writes into its blocks.
    assert gated.engine.load().num_free_blocks == (14 if gated.overlaps else 16)
    gated.let_run()
    gated.settle()
    assert gated.engine.load().num_free_blocks == 16


def test_the_load_is_in_every_output_and_up_to_date_after_it(gated: Fixture) -> None:
    gated.let_run()
    gated.engine.submit(make_request("a", 6, max_tokens=3))
    gated.start()
    gated.inbox.wait_for_end("a")
    loads = [step.load for step in gated.inbox.steps]
    assert [load.num_running for load in loads] == [1, 1, 0]
    assert [load.num_free_blocks for load in loads] == [14, 14, 16]
    gated.settle()
    assert gated.engine.load() == loads[-1]


def test_a_failing_batch_ends_its_requests_and_the_engine_goes_on(gated: Fixture) -> None:
    gated.start()
    gated.let_run()
    for attempt in range(3):
        gated.runner.error = RuntimeError("device lost")
        gated.engine.submit(make_request(f"bad{attempt}", 4))
        gated.inbox.wait_for_end(f"bad{attempt}")
        end = gated.inbox.ends[f"bad{attempt}"]
        assert end.finish_reason is FinishReason.ERROR
        assert isinstance(end.error, InternalError)
        assert "RuntimeError: device lost" in end.error.message
    gated.runner.error = None
    gated.engine.submit(make_request("good", 4, max_tokens=2))
    gated.inbox.wait_for_end("good")
    assert gated.inbox.ends["good"].finish_reason is FinishReason.LENGTH
    gated.settle()
    assert gated.engine.load().num_free_blocks == 16


def test_a_runner_that_samples_too_much_fails_the_batch(gated: Fixture) -> None:
    gated.runner.num_extra_tokens = 1
    gated.start()
    gated.let_run()
    gated.engine.submit(make_request("a", 4))
    gated.inbox.wait_for_end("a")
    error = gated.inbox.ends["a"].error
    assert error is not None
    assert "2 tokens sampled for 1 sequences" in error.message


def test_a_failing_listener_does_not_end_other_requests() -> None:
    engine = FakeEngine()
    inbox = Inbox()

    def listener(output: StepOutput) -> None:
        inbox(output)
        if any(item.request_id == "a" for item in output.outputs):
            raise RuntimeError("bug in a service")

    engine.start(listener)
    engine.submit(make_request("a", 4, max_tokens=2))
    engine.submit(make_request("b", 4, max_tokens=2))
    inbox.wait_for_end("a", "b")
    engine.stop()


def test_a_bug_in_the_scheduler_ends_everything_instead_of_computing_on(gated: Fixture) -> None:
    def broken() -> None:
        raise AssertionError("block 0 is not held")

    gated.engine.submit(make_request("a", 4))
    gated.engine._commands.put(broken)
    gated.engine.submit(make_request("behind", 4))
    future = gated.engine.pin("p", [])
    gated.start()
    gated.inbox.wait_for_end("a", "behind")
    assert gated.inbox.ends["a"].finish_reason is FinishReason.ERROR
    assert gated.inbox.ends["behind"].finish_reason is FinishReason.ERROR
    assert future.result(DEADLINE) == ()
    with pytest.raises(UnavailableError, match="stopped"):
        gated.engine.submit(make_request("b", 4))


def test_pins_are_answered_between_steps(gated: Fixture) -> None:
    gated.start()
    gated.let_run()
    gated.engine.submit(make_request("a", 8, max_tokens=1))
    gated.inbox.wait_for_end("a")
    stored = [name for step in gated.inbox.steps for name in step.stored_block_hashes]
    assert gated.engine.pin("p", [*stored, b"unknown"]).result(DEADLINE) == (0, 1)
    with pytest.raises(InvalidRequestError, match="in use"):
        gated.engine.pin("p", stored).result(DEADLINE)
    gated.settle()
    assert gated.engine.load().num_free_blocks == 14
    gated.engine.release("p")
    gated.settle()
    assert gated.engine.load().num_free_blocks == 16


def test_a_pin_that_was_given_up_holds_nothing(gated: Fixture) -> None:
    future = gated.engine.pin("p", [])
    assert future.cancel()
    gated.start()
    gated.settle()
    with pytest.raises(CancelledError):
        future.result(DEADLINE)
    assert gated.engine.pin("p", []).result(DEADLINE) == ()
    gated.engine.release("p")


def test_a_snapshot_comes_with_the_next_output(gated: Fixture) -> None:
    gated.start()
    gated.let_run()
    gated.engine.submit(make_request("a", 8, max_tokens=1))
    gated.inbox.wait_for_end("a")
    gated.engine.publish_snapshot()
    gated.settle()
    (snapshot,) = [s.cache_snapshot for s in gated.inbox.steps if s.cache_snapshot is not None]
    assert len(snapshot) == 2


def make_live_requests() -> list[EngineRequest]:
    return [
        make_request("running", 4, max_tokens=50),
        make_request("export", 4, export=True),
        make_request("import", 4, await_kv=True),
    ]


def test_stop_ends_every_request_and_refuses_new_ones(gated: Fixture) -> None:
    gated.start()
    for request in make_live_requests():
        gated.engine.submit(request)
    gated.inbox.wait_for_grant("import")
    gated.let_run()
    gated.engine.stop()
    gated.engine.stop()
    assert set(gated.inbox.ends) == {"running", "export", "import"}
    assert gated.inbox.ends["running"].finish_reason is FinishReason.CANCELLED
    with pytest.raises(UnavailableError, match="stopped"):
        gated.engine.submit(make_request("b", 4))
    with pytest.raises(UnavailableError, match="stopped"):
        gated.engine.pin("p", []).result(DEADLINE)
    gated.engine.release("export")  # clean-up code of services may run late
    gated.engine.finish_import("import", 0)
    assert [t.name for t in threading.enumerate() if t.name == "engine"] == []


def test_stop_answers_what_was_asked_just_before_it(gated: Fixture) -> None:
    gated.start()
    gated.engine.submit(make_request("first", 4))
    gated.wait_until_computing()
    gated.engine.submit(make_request("queued", 4))
    future = gated.engine.pin("p", [])
    gated.let_run()
    gated.engine.stop()
    assert set(gated.inbox.ends) == {"first", "queued"}
    assert future.result(0) == ()


def test_stop_before_the_start_answers_pins(gated: Fixture) -> None:
    future = gated.engine.pin("p", [])
    gated.engine.stop()
    assert future.result(0) == ()


def test_stop_gives_up_on_a_step_that_hangs() -> None:
    info = make_info()
    kv = FakeKv(info.layout, info.num_blocks)
    runner = GatedRunner(kv)
    scheduler = Scheduler(info, SchedulerConfig().on("cpu"), vocab_size=VOCAB_SIZE)
    engine = EngineCore(info, scheduler, runner, kv, stop_timeout=0.05)
    engine.start(Inbox())
    engine.submit(make_request("a", 4))
    assert runner.entered.acquire(timeout=DEADLINE)
    engine.stop()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "engine"]
    runner.gate.release()
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_kv_travels_from_an_export_to_an_import() -> None:
    prompt = range(100, 150)
    expected = expected_tokens(prompt, 8)
    sender, receiver = FakeEngine(), FakeEngine(num_blocks=16)
    sent, received = Inbox(), Inbox()
    sender.start(sent)
    receiver.start(received)
    receiver.submit(make_request("a", prompt, max_tokens=8, await_kv=True))
    grant = received.wait_for_grant("a")
    sender.submit(make_request("a", prompt, export=True))
    sent.wait_for_end("a")
    (source,) = [export for step in sent.steps for export in step.exports]
    progress = [p for step in sent.steps for p in step.progress]
    assert progress[-1][1:] == (50, 2)
    assert source.block_hashes == grant.block_hashes
    receiver.first_token("a", sent.tokens["a"][0])
    for layer in range(2):
        payload = read_kv(sender.kv, source.block_ids, layer, 1)
        receiver.kv.write(grant.block_ids, layer, 1, payload)
    sender.release("a")
    receiver.finish_import("a", 50)
    received.wait_for_end("a")
    assert tuple(received.tokens["a"]) == expected
    assert received.ends["a"].num_received_tokens == 50
    sender.stop()
    receiver.stop()
    assert (sender.num_free_blocks, receiver.num_free_blocks) == (64, 16)


def test_kv_that_never_arrived_is_noticed_by_the_fake() -> None:
    engine = FakeEngine()
    inbox = Inbox()
    engine.start(inbox)
    engine.submit(make_request("a", 8, await_kv=True))
    inbox.wait_for_grant("a")
    engine.finish_import("a", 8)
    inbox.wait_for_end("a")
    assert inbox.ends["a"].finish_reason is FinishReason.ERROR
    engine.stop()
