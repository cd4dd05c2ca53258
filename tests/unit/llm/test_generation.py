"""One call's requests on an engine: whatever happens, nothing is lost and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pagemesh.errors import ContextLengthError, UnavailableError
from pagemesh.llm.inbox import Deliveries
from pagemesh.tokenizer import Tokenizer
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.unit.llm.runs import make_run, run, settle


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
