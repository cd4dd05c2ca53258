"""Steps that overlap: what is launched when, what comes too late, and what a failure costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import StepOutput
from pagemesh.core.request import EngineRequest, FinishReason
from pagemesh.engine.engine import EngineCore
from pagemesh.engine.runner import LayerProgress
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.scheduler.batch import UNKNOWN_TOKEN, Batch, StepResult
from pagemesh.scheduler.scheduler import Scheduler
from tests.fakes.engine import VOCAB_SIZE, FakeKv, FakeRunner, FakeStep, expected_tokens
from tests.fakes.grammars import FakeConstraint
from tests.fakes.inbox import Inbox
from tests.unit.scheduler.builders import FixedGrowth, make_info, make_request

PROMPT = range(100, 105)
TOKENS = expected_tokens(PROMPT, 9)


class LoggedStep(FakeStep):
    """Writes down when it is sampled and read; fails where it is told to."""

    def __init__(self, runner: LoggingRunner, batch: Batch, watch: LayerProgress | None) -> None:
        super().__init__(runner.execute, batch, watch)
        self._runner = runner
        self._number = runner.num_launched
        self._batch = batch

    def sample(self) -> None:
        self._runner.note("sample", self._number)
        for sequence in self._batch.sequences:
            if isinstance(sequence.constraint, FakeConstraint):
                self._runner.accepted.append(list(sequence.constraint.accepted))

    def result(self) -> StepResult:
        self._runner.note("result", self._number)
        return super().result()


class LoggingRunner(FakeRunner):
    """Writes down what is done with its steps."""

    def __init__(self, kv: FakeKv) -> None:
        super().__init__(kv)
        self.log: list[str] = []
        self.batches: list[Batch] = []
        self.num_launched = 0
        self.failing = ""
        self.accepted: list[list[int]] = []

    def note(self, what: str, number: int) -> None:
        self.log.append(f"{what} {number}")
        if self.log[-1] == self.failing:
            raise RuntimeError("device lost")

    def launch(self, batch: Batch, watch: LayerProgress | None = None) -> FakeStep:
        self.num_launched += 1
        self.batches.append(batch)
        self.note("launch", self.num_launched)
        return LoggedStep(self, batch, watch)


class Fixture:
    """An engine whose steps overlap, or not."""

    def __init__(self, *, overlaps: bool = True, eos_token_ids: Sequence[int] = ()) -> None:
        info = make_info()
        kv = FakeKv(info.layout, info.num_blocks)
        self.runner = LoggingRunner(kv)
        self.scheduler = Scheduler(
            info,
            SchedulerConfig().on("cpu"),
            vocab_size=VOCAB_SIZE,
            eos_token_ids=eos_token_ids,
            forecast=FixedGrowth(0),
        )
        self.engine = EngineCore(info, self.scheduler, self.runner, kv, overlaps=overlaps)
        self.inbox = Inbox()

    def run(self, *requests: EngineRequest) -> None:
        """All requests, from submission to their ends; nothing is left behind."""
        for request in requests:
            self.engine.submit(request)
        self.engine.start(self.inbox)
        self.inbox.wait_for_end(*(request.request_id for request in requests))
        self.engine.stop()
        self.scheduler.requests.check_integrity()
        assert self.engine.load().num_free_blocks == 16


def test_each_step_is_read_when_the_next_one_is_launched() -> None:
    fixture = Fixture()
    fixture.run(make_request("a", PROMPT, max_tokens=3))
    assert fixture.runner.log == [
        *("launch 1", "sample 1"),
        *("launch 2", "result 1", "sample 2"),
        *("launch 3", "result 2", "sample 3"),
        "result 3",
    ]
    assert tuple(fixture.inbox.tokens["a"]) == TOKENS[:3]


def test_without_overlap_each_step_is_read_before_the_next_one_is_launched() -> None:
    fixture = Fixture(overlaps=False)
    fixture.run(make_request("a", PROMPT, max_tokens=2))
    assert fixture.runner.log == [
        *("launch 1", "sample 1", "result 1"),
        *("launch 2", "sample 2", "result 2"),
    ]
    assert {s.previous_row for batch in fixture.runner.batches for s in batch.sequences} == {None}


def test_tokens_in_flight_are_named_by_their_places_in_the_step_before() -> None:
    fixture = Fixture()
    fixture.run(
        make_request("a", PROMPT, max_tokens=2),
        make_request("b", 3, max_tokens=4),
        make_request("c", 3, max_tokens=4, priority=-1),
    )
    rows = [
        [(s.request_id, s.token_ids[-1] == UNKNOWN_TOKEN, s.previous_row) for s in batch.sequences]
        for batch in fixture.runner.batches
    ]
    assert rows == [
        [("c", False, None), ("a", False, None), ("b", False, None)],
        [("c", True, 0), ("a", True, 1), ("b", True, 2)],
        [("c", True, 0), ("b", True, 2)],
        [("c", True, 0), ("b", True, 1)],
    ]


def test_a_stop_token_ends_the_answer_and_what_was_computed_behind_it_is_thrown_away() -> None:
    fixture = Fixture()
    fixture.run(make_request("a", PROMPT, max_tokens=9, stop=TOKENS[2:3]))
    assert tuple(fixture.inbox.tokens["a"]) == TOKENS[:3]
    assert fixture.inbox.ends["a"].finish_reason is FinishReason.STOP
    assert fixture.runner.num_launched == 4
    # Of eight tokens the KV of the last was computed for nothing; there are 7 of the 8 of two blocks.
    stored = [name for step in fixture.inbox.steps for name in step.stored_block_hashes]
    assert len(stored) == 1


def test_a_constraint_has_accepted_all_tokens_before_the_next_one_is_sampled() -> None:
    fixture = Fixture()
    request = make_request("a", PROMPT, max_tokens=4, structured=StructuredOutputs.of(regex="a+"))
    constraint = FakeConstraint()
    fixture.scheduler.requests.submit(request)
    fixture.scheduler.constraints.open(request, constraint)
    fixture.engine.start(fixture.inbox)
    fixture.inbox.wait_for_end("a")
    fixture.engine.stop()
    assert fixture.runner.accepted == [list(TOKENS[:count]) for count in range(4)]
    assert fixture.runner.log[:3] == ["launch 1", "sample 1", "launch 2"]


@pytest.mark.parametrize("where", ["launch 2", "sample 2", "result 2"])
def test_a_step_that_fails_ends_its_own_requests_after_those_before_it(where: str) -> None:
    fixture = Fixture()
    fixture.runner.failing = where
    fixture.run(
        make_request("short", PROMPT, max_tokens=1),
        make_request("long", 6, max_tokens=5),
    )
    assert fixture.inbox.ends["short"].finish_reason is FinishReason.LENGTH
    assert tuple(fixture.inbox.tokens["short"]) == TOKENS[:1]
    # The first step's token is known; what was in flight behind the failure is not used.
    assert fixture.inbox.ends["long"].finish_reason is FinishReason.ERROR
    assert "device lost" in str(fixture.inbox.ends["long"].error)
    first = expected_tokens(make_request("long", 6).prompt_token_ids, 1)
    assert tuple(fixture.inbox.tokens["long"]) == first


def test_stopping_with_a_step_in_flight_waits_for_it_and_gives_everything_back() -> None:
    fixture = Fixture()

    def listen(output: StepOutput) -> None:
        fixture.inbox(output)
        fixture.engine.stop()

    fixture.engine.submit(make_request("a", PROMPT, max_tokens=40))
    fixture.engine.start(listen)
    fixture.inbox.wait_for_end("a")
    fixture.engine.stop()
    assert fixture.inbox.ends["a"].finish_reason is FinishReason.CANCELLED
    assert fixture.runner.log[-2:] == ["sample 2", "result 2"]
    assert tuple(fixture.inbox.tokens["a"]) == TOKENS[:2]
    assert fixture.engine.load().num_free_blocks == 16
    fixture.scheduler.requests.check_integrity()
