"""A call waits for as long as its engine can answer, and no longer."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagemesh.core.engine import StepOutput
from pagemesh.core.request import FinishReason, RequestOutput
from pagemesh.errors import InternalError, UnavailableError
from pagemesh.llm.inbox import Deliveries
from pagemesh.tokenizer import Tokenizer
from tests.fakes.engine import expected_tokens
from tests.fakes.inbox import DEADLINE
from tests.unit.llm.runs import make_acting_engine, make_run, run, settle


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


@pytest.fixture
def deliveries() -> Deliveries:
    return Deliveries()


@pytest.fixture
def heeded_ctrl_c() -> Iterator[None]:
    """A shell has its background jobs ignore SIGINT, and so do the tests if they are one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_ctrl_c")
def test_ctrl_c_ends_the_call_and_leaves_an_engine_that_works(
    deliveries: Deliveries, tokenizer: Tokenizer
) -> None:
    interrupted = threading.Event()

    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.wait(DEADLINE)

    engine = make_acting_engine(press)
    engine.start(deliveries)
    with pytest.raises(KeyboardInterrupt):
        run(engine, deliveries, make_run(tokenizer, "a", (1, 2, 3), max_tokens=50))
    interrupted.set()
    settle(engine)
    assert engine.load().num_running == 0
    again = make_run(tokenizer, "b", (4, 5, 6))
    run(engine, deliveries, again)
    assert again.output().outputs[0].token_ids == expected_tokens((4, 5, 6), 8)
    engine.stop()


def test_a_step_that_hangs_ends_the_call_with_an_error(tokenizer: Tokenizer) -> None:
    given_up = threading.Event()
    engine = make_acting_engine(lambda: given_up.wait(DEADLINE), step_timeout=0.05)
    deliveries = Deliveries(check_interval=0.01)
    engine.start(deliveries)
    with pytest.raises(InternalError, match="the engine hangs: a step has been computing for"):
        run(engine, deliveries, make_run(tokenizer, "a", (1, 2, 3), max_tokens=50))
    given_up.set()
    engine.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_thread_that_died_ends_the_call_with_an_error(tokenizer: Tokenizer) -> None:
    def die() -> None:
        # Not an Exception: nothing of the engine takes note of it.
        raise SystemExit

    engine = make_acting_engine(die)
    deliveries = Deliveries(check_interval=0.01)
    engine.start(deliveries)
    with pytest.raises(InternalError, match="the engine's thread has ended"):
        run(engine, deliveries, make_run(tokenizer, "a", (1, 2, 3), max_tokens=50))
    engine.stop()


def test_what_an_engine_said_before_it_died_counts() -> None:
    def check() -> None:
        deliveries(StepOutput([RequestOutput("a", (7,))]))
        raise InternalError("gone")

    deliveries = Deliveries(check_interval=0.01)
    with deliveries.inbox(["a"], check) as inbox:
        assert inbox.get() == [RequestOutput("a", (7,))]


def test_outputs_of_several_steps_are_given_together_once_a_request_has_ended() -> None:
    deliveries = Deliveries(check_interval=DEADLINE)
    end = RequestOutput("b", (3,), FinishReason.LENGTH)
    with deliveries.inbox(["a", "b"], lambda: None) as inbox:
        deliveries(StepOutput([RequestOutput("a", (1,)), RequestOutput("c", (9,))]))
        deliveries(StepOutput([RequestOutput("a", (2,)), end]))
        assert inbox.get() == [RequestOutput("a", (1,)), RequestOutput("a", (2,)), end]


def test_what_there_is_is_given_now_and_then() -> None:
    deliveries = Deliveries(check_interval=0.01)
    with deliveries.inbox(["a"], lambda: None) as inbox:
        deliveries(StepOutput([RequestOutput("a", (1,))]))
        assert inbox.get() == [RequestOutput("a", (1,))]


def test_an_eager_inbox_gives_every_output_at_once() -> None:
    deliveries = Deliveries(check_interval=DEADLINE)
    with deliveries.inbox(["a"], lambda: None, eager=True) as inbox:
        started = time.monotonic()
        deliveries(StepOutput([RequestOutput("a", (1,))]))
        assert inbox.get() == [RequestOutput("a", (1,))]
        assert time.monotonic() - started < DEADLINE / 2


def test_stopping_the_engine_ends_the_call_with_an_error(
    deliveries: Deliveries, tokenizer: Tokenizer
) -> None:
    stopping = make_acting_engine(lambda: stopping.stop())
    stopping.start(deliveries)
    stopped = make_run(tokenizer, "a", (1, 2, 3), max_tokens=50)
    run(stopping, deliveries, stopped)
    output = stopped.output()
    assert isinstance(output.error, UnavailableError)
    assert output.outputs[0].token_ids == expected_tokens((1, 2, 3), 3)
    assert output.outputs[0].finish_reason == "error"
