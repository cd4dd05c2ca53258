"""One call's requests on an engine: whatever happens, nothing is lost and nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.engine.engine import EngineCore
from pagemesh.engine.interface import EngineRequest
from pagemesh.engine.offline.deliveries import Deliveries
from pagemesh.engine.offline.generation import Answer, PromptRun, run_to_end
from pagemesh.engine.offline.progress import Progress
from pagemesh.engine.offline.prompts import EncodedPrompt
from pagemesh.errors import ContextLengthError, UnavailableError
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch
from pagemesh.scheduler.scheduler import Scheduler
from pagemesh.scheduler.step_result import StepResult
from pagemesh.tokenizer import Tokenizer
from tests.fakes.engine import VOCAB_SIZE, FakeEngine, FakeKv, FakeRunner, expected_tokens
from tests.fakes.inbox import DEADLINE
from tests.unit.scheduler.builders import make_info


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


@pytest.fixture
def deliveries() -> Deliveries:
    return Deliveries()


@pytest.fixture
def engine(deliveries: Deliveries) -> Iterator[FakeEngine]:
    engine = FakeEngine()
    engine.start(deliveries)
    yield engine
    engine.stop()
    assert engine.num_free_blocks == engine.info.num_blocks
    engine.scheduler.requests.check_integrity()


def make_run(
    tokenizer: Tokenizer,
    request_id: str,
    prompt: tuple[int, ...],
    *,
    num_answers: int = 1,
    max_tokens: int = 8,
    stop: tuple[str, ...] = (),
    stop_token_ids: tuple[int, ...] = (),
) -> PromptRun:
    """Answer i draws with seed i."""
    answers = []
    for index in range(num_answers):
        sampling = SamplingParams(seed=index, max_tokens=max_tokens, stop_token_ids=stop_token_ids)
        request = EngineRequest(f"{request_id}-{index}", prompt, sampling)
        answers.append(Answer(request, tokenizer, stop))
    return PromptRun(request_id, EncodedPrompt(None, prompt), answers, num_answers, False)


def run(engine: EngineCore, deliveries: Deliveries, *runs: PromptRun) -> None:
    with Progress(len(runs), shown=False) as progress:
        run_to_end(engine, deliveries, runs, progress)


def settle(engine: EngineCore) -> None:
    """Wait until every command queued so far was run."""
    engine.pin("settle", []).result(DEADLINE)
    engine.release("settle")
    engine.pin("settle", []).result(DEADLINE)
    engine.release("settle")


def test_answers_belong_to_their_prompts(
    engine: FakeEngine, deliveries: Deliveries, tokenizer: Tokenizer
) -> None:
    runs = [make_run(tokenizer, str(i), tuple(range(1, 9 + i)), num_answers=3) for i in range(5)]
    run(engine, deliveries, *runs)
    for i, done in enumerate(runs):
        output = done.output()
        assert output.prompt_token_ids == tuple(range(1, 9 + i))
        assert [answer.index for answer in output.outputs] == [0, 1, 2]
        for seed, answer in enumerate(output.outputs):
            assert answer.token_ids == expected_tokens(range(1, 9 + i), 8, seed)
            assert answer.text == tokenizer.decode(answer.token_ids)
            assert (answer.finish_reason, answer.stop_reason) == ("length", None)


def test_a_stop_token_of_the_request_is_the_reason(
    engine: FakeEngine, deliveries: Deliveries, tokenizer: Tokenizer
) -> None:
    expected = expected_tokens(range(1, 9), 3)
    stopped = make_run(tokenizer, "a", tuple(range(1, 9)), stop_token_ids=(expected[2],))
    run(engine, deliveries, stopped)
    (answer,) = stopped.output().outputs
    assert answer.token_ids == expected
    assert answer.text == tokenizer.decode(expected[:2])
    assert (answer.finish_reason, answer.stop_reason) == ("stop", expected[2])


def test_a_stop_string_ends_the_request_in_the_engine_too(
    engine: FakeEngine, deliveries: Deliveries, tokenizer: Tokenizer
) -> None:
    expected = expected_tokens(range(1, 9), 3)
    stop = tokenizer.decode(expected[2:])
    stopped = make_run(tokenizer, "a", tuple(range(1, 9)), stop=(stop,), max_tokens=400)
    run(engine, deliveries, stopped)
    (answer,) = stopped.output().outputs
    assert answer.token_ids == expected
    assert answer.text == tokenizer.decode(expected[:2])
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    settle(engine)
    assert engine.load().num_running == 0


def test_one_failing_request_does_not_lose_the_others(
    engine: FakeEngine, deliveries: Deliveries, tokenizer: Tokenizer
) -> None:
    good = make_run(tokenizer, "good", tuple(range(1, 9)))
    too_long = make_run(tokenizer, "bad", (1,) * 600)
    run(engine, deliveries, too_long, good)
    assert good.output().outputs[0].token_ids == expected_tokens(range(1, 9), 8)
    assert good.output().error is None
    assert isinstance(too_long.output().error, ContextLengthError)
    assert too_long.output().outputs[0].finish_reason == "error"


def test_cached_tokens_are_counted(
    engine: FakeEngine, deliveries: Deliveries, tokenizer: Tokenizer
) -> None:
    prompt = tuple(range(1, 41))
    cold, warm = make_run(tokenizer, "cold", prompt), make_run(tokenizer, "warm", prompt)
    run(engine, deliveries, cold)
    run(engine, deliveries, warm)
    assert (cold.output().num_cached_tokens, warm.output().num_cached_tokens) == (0, 32)


def test_a_stopped_engine_refuses(deliveries: Deliveries, tokenizer: Tokenizer) -> None:
    engine = FakeEngine()
    engine.start(deliveries)
    engine.stop()
    with pytest.raises(UnavailableError, match="the engine is stopped"):
        run(engine, deliveries, make_run(tokenizer, "a", (1, 2)))


class ActingRunner(FakeRunner):
    """Does something in its third step."""

    def __init__(self, kv: FakeKv, act: Callable[[], object]) -> None:
        super().__init__(kv)
        self._act = act
        self._num_steps = 0

    def execute(self, batch: Batch) -> StepResult:
        self._num_steps += 1
        if self._num_steps == 3:
            self._act()
        return super().execute(batch)


def make_acting_engine(act: Callable[[], object]) -> EngineCore:
    info = make_info(num_blocks=64)
    kv = FakeKv(info.layout, info.num_blocks)
    scheduler = Scheduler(info, SchedulerConfig(), vocab_size=VOCAB_SIZE)
    return EngineCore(info, scheduler, ActingRunner(kv, act), kv)


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
