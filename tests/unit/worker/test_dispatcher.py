"""Where the events of a step go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
import structlog

from pagemesh.core.engine import StepListener, StepOutput
from pagemesh.core.kv import KvExport, KvGrant, KvProgress
from pagemesh.core.load import EngineLoad
from pagemesh.core.request import EngineRequest, FinishReason, RequestOutput
from pagemesh.errors import UnavailableError, WorkerLostError
from pagemesh.sampling.params import SamplingParams
from pagemesh.telemetry.metrics import Metrics
from pagemesh.worker.dispatcher import RequestEvent, StepDispatcher
from pagemesh.worker.engine_metrics import EngineMetrics
from tests.fakes.engine import FakeEngine
from tests.support.waiting import wait_until


class ScriptedEngine(FakeEngine):
    """Gives the steps that a test hands it, on a thread of its own, and notes imports given back."""

    def __init__(self) -> None:
        super().__init__()
        self.finished_imports: list[tuple[str, int]] = []
        self._script_listener: StepListener | None = None

    def start(self, listener: StepListener) -> None:
        self._script_listener = listener

    def submit(self, request: EngineRequest) -> None:
        pass

    def finish_import(self, request_id: str, num_valid_tokens: int) -> None:
        self.finished_imports.append((request_id, num_valid_tokens))

    def step(self, output: StepOutput) -> None:
        thread = threading.Thread(target=self.step_here, args=(output,))
        thread.start()
        thread.join()

    def step_here(self, output: StepOutput) -> None:
        assert self._script_listener is not None
        self._script_listener(output)


class Listener:
    def __init__(self) -> None:
        self.events: list[RequestEvent] = []

    def __call__(self, event: RequestEvent) -> None:
        self.events.append(event)


def make_request(request_id: str) -> EngineRequest:
    return EngineRequest(request_id, (1, 2, 3), SamplingParams())


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.stop()


@pytest.fixture
async def dispatcher(engine: ScriptedEngine) -> StepDispatcher:
    dispatcher = StepDispatcher(engine, EngineMetrics(Metrics(), "fake", engine))
    dispatcher.start()
    return dispatcher


async def test_each_request_gets_its_own_events_grants_first(
    engine: ScriptedEngine, dispatcher: StepDispatcher
) -> None:
    one, other = Listener(), Listener()
    dispatcher.submit(make_request("a"), one)
    dispatcher.submit(make_request("b"), other)
    grant = KvGrant("a", 0, (1,), ())
    export, progress = KvExport("a", (1,), (), 0), KvProgress("a", 3, 1)
    output_a, output_b = RequestOutput("a", (5,)), RequestOutput("b", (6,))
    engine.step(
        StepOutput(
            outputs=[output_a, output_b], exports=[export], progress=[progress], grants=[grant]
        )
    )
    await wait_until(lambda: bool(other.events), "the step")
    assert one.events == [grant, export, progress, output_a]
    assert other.events == [output_b]


async def test_a_request_that_ended_gets_no_more(
    engine: ScriptedEngine, dispatcher: StepDispatcher
) -> None:
    ended, other = Listener(), Listener()
    dispatcher.submit(make_request("a"), ended)
    dispatcher.submit(make_request("b"), other)
    last = RequestOutput("a", (5,), FinishReason.LENGTH)
    engine.step(StepOutput(outputs=[last]))
    engine.step(StepOutput(outputs=[RequestOutput("a", (6,)), RequestOutput("b", (7,))]))
    await wait_until(lambda: bool(other.events), "both steps")
    assert ended.events == [last]


async def test_a_grant_that_nobody_waits_for_is_given_back(
    engine: ScriptedEngine, dispatcher: StepDispatcher
) -> None:
    listener = Listener()
    dispatcher.submit(make_request("a"), listener)
    dispatcher.forget("a")
    engine.step(StepOutput(grants=[KvGrant("a", 16, (1, 2), ())]))
    await wait_until(lambda: bool(engine.finished_imports), "the grant's return")
    assert engine.finished_imports == [("a", 16)]
    assert listener.events == []


async def test_a_listener_that_fails_does_not_keep_a_step_from_the_others(
    engine: ScriptedEngine, dispatcher: StepDispatcher
) -> None:
    def fail(event: RequestEvent) -> None:
        raise ValueError("broken")

    other = Listener()
    dispatcher.submit(make_request("a"), fail)
    dispatcher.submit(make_request("b"), other)
    with structlog.testing.capture_logs() as logs:
        engine.step(StepOutput(outputs=[RequestOutput("a", (5,)), RequestOutput("b", (6,))]))
        await wait_until(lambda: bool(other.events), "the step")
    assert [line["event"] for line in logs] == ["request listener failed"]


async def test_a_grant_whose_listener_fails_is_given_back(
    engine: ScriptedEngine, dispatcher: StepDispatcher
) -> None:
    def fail(event: RequestEvent) -> None:
        raise RuntimeError("a bug")

    dispatcher.submit(make_request("a"), fail)
    with structlog.testing.capture_logs() as logs:
        engine.step(StepOutput(grants=[KvGrant("a", 16, (1, 2), ())]))
        await wait_until(lambda: bool(engine.finished_imports), "the grant's return")
    assert engine.finished_imports == [("a", 16)]
    assert [entry["event"] for entry in logs] == ["request listener failed"]


async def test_steps_are_told_to_whoever_subscribed(
    engine: ScriptedEngine, dispatcher: StepDispatcher
) -> None:
    steps: list[StepOutput] = []
    dispatcher.subscribe(steps.append)
    step = StepOutput(stored_block_hashes=[b"x" * 16], load=EngineLoad(num_running=3))
    engine.step(step)
    await wait_until(lambda: bool(steps), "the step")
    assert steps == [step]
    assert dispatcher.load.num_running == 3


async def test_ids_for_the_engine_are_unique(dispatcher: StepDispatcher) -> None:
    assert dispatcher.unique_id("same") != dispatcher.unique_id("same")
    assert dispatcher.unique_id("same").startswith("same#")


async def test_a_stopped_engine_refuses_requests() -> None:
    engine = FakeEngine()
    dispatcher = StepDispatcher(engine, EngineMetrics(Metrics(), "fake", engine))
    dispatcher.start()
    await asyncio.to_thread(engine.stop)
    with pytest.raises(UnavailableError):
        dispatcher.submit(make_request("a"), Listener())


async def test_steps_told_on_the_loop_itself_are_dispatched_at_once(
    engine: ScriptedEngine, dispatcher: StepDispatcher
) -> None:
    steps: list[StepOutput] = []
    dispatcher.subscribe(steps.append)
    engine.step_here(StepOutput())
    assert len(steps) == 1


async def test_without_an_engine_every_request_ends_with_the_error(
    dispatcher: StepDispatcher,
) -> None:
    listeners = [Listener(), Listener()]
    for number, listener in enumerate(listeners):
        dispatcher.submit(make_request(f"r{number}"), listener)
    error = WorkerLostError("gone")
    dispatcher.end_all(error)
    for number, listener in enumerate(listeners):
        expected = RequestOutput(f"r{number}", finish_reason=FinishReason.ERROR, error=error)
        assert listener.events == [expected]
    dispatcher.end_all(error)
    assert [len(listener.events) for listener in listeners] == [1, 1]


async def test_an_engine_answers_between_two_steps_and_never_when_it_hangs() -> None:
    engine = FakeEngine()
    dispatcher = StepDispatcher(engine, EngineMetrics(Metrics(), "fake", engine))
    answer = asyncio.create_task(dispatcher.engine_answers())
    await asyncio.sleep(0)
    assert not answer.done()
    dispatcher.start()
    await asyncio.wait_for(answer, 5.0)
    assert engine.num_free_blocks == 64
    engine.stop()
    with pytest.raises(UnavailableError, match="stopped"):
        await dispatcher.engine_answers()
