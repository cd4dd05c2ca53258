"""The engine's loop and block moves: when they are done, timed, and what a failure of theirs means."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import StepOutput
from pagemesh.core.request import EngineRequest, FinishReason
from pagemesh.engine.engine import EngineCore
from pagemesh.engine.runner import LayerProgress
from pagemesh.scheduler.batch import Batch, BlockMoves, StepResult
from pagemesh.scheduler.scheduler import Scheduler
from tests.fakes.engine import VOCAB_SIZE, FakeKv, FakeRunner, expected_tokens
from tests.fakes.inbox import DEADLINE, Inbox
from tests.unit.scheduler.builders import FixedGrowth, FixedWay, make_info, make_request


class SteppedRunner(FakeRunner):
    """Waits in the first batch until it may go on; can be told to fail at moves."""

    def __init__(self, kv: FakeKv) -> None:
        super().__init__(kv, num_swap_blocks=4)
        self.computing = threading.Event()
        self.go_on = threading.Event()
        self.moves_fail = False

    def move(self, moves: BlockMoves) -> None:
        if self.moves_fail:
            raise OSError("the memory is gone")
        super().move(moves)

    def execute(self, batch: Batch, watch: LayerProgress | None = None) -> StepResult:
        self.computing.set()
        assert self.go_on.wait(DEADLINE)
        return super().execute(batch, watch)


class Timed(FixedWay):
    """Always swaps, and keeps what moves took."""

    def __init__(self) -> None:
        super().__init__(True)
        self.steps: list[tuple[bool, float]] = []

    def observe(self, batch: Batch, move_seconds: float) -> None:
        self.steps.append((bool(batch.moves), move_seconds))


class Fixture:
    """An engine with few blocks; its importers write garbage as soon as they hear of a grant."""

    def __init__(self, num_blocks: int, *, overlaps: bool) -> None:
        info = make_info(num_blocks)
        self.kv = FakeKv(info.layout, num_blocks)
        self.runner = SteppedRunner(self.kv)
        self.policy = Timed()
        self.scheduler = Scheduler(
            info,
            SchedulerConfig().on("cpu"),
            vocab_size=VOCAB_SIZE,
            enable_prefix_caching=False,
            num_swap_blocks=4,
            preemption=self.policy,
            forecast=FixedGrowth(0),
        )
        self.engine = EngineCore(info, self.scheduler, self.runner, self.kv, overlaps=overlaps)
        self.inbox = Inbox()

    def start(self, *requests: EngineRequest) -> None:
        """Submit the requests and wait until the first batch is in the runner."""
        for request in requests:
            self.engine.submit(request)
        self.engine.start(self.listen)
        assert self.runner.computing.wait(DEADLINE)

    def listen(self, output: StepOutput) -> None:
        for grant in output.grants:
            self.kv.memory[:, :, list(grant.block_ids)] = np.nan
            self.engine.finish_import(grant.request_id, 0)
        self.inbox(output)

    def finish(self, *requests: EngineRequest) -> None:
        """Let it run; all requests get the tokens that they would get alone."""
        self.runner.go_on.set()
        self.inbox.wait_for_end(*(request.request_id for request in requests))
        self.engine.stop()
        for request in requests:
            length = request.sampling.max_tokens
            expected = expected_tokens(request.prompt_token_ids, length)
            assert tuple(self.inbox.tokens[request.request_id]) == expected


OVERLAPS = pytest.mark.parametrize("overlaps", [False, True], ids=["step by step", "overlapped"])

A, B = make_request("a", 7, max_tokens=6), make_request("b", 11, max_tokens=3)


@OVERLAPS
def test_kv_is_swapped_out_before_an_importer_hears_of_the_block(overlaps: bool) -> None:
    fixture = Fixture(num_blocks=5, overlaps=overlaps)
    fixture.start(A, B)
    # It gets one of the blocks that "b" loses when "a" needs one.
    urgent = make_request("urgent", 4, max_tokens=1, priority=-1, await_kv=True)
    fixture.engine.submit(urgent)
    fixture.finish(A, B, urgent)
    assert fixture.scheduler.load().num_preemptions == 1


@OVERLAPS
def test_moves_are_done_in_a_step_that_computes_nothing(overlaps: bool) -> None:
    fixture = Fixture(num_blocks=4, overlaps=overlaps)
    export = make_request("export", 8, max_tokens=1, export=True)
    alone = make_request("alone", 7, max_tokens=4)
    fixture.start(export, alone)
    fixture.runner.go_on.set()
    fixture.inbox.wait_for_end("export")
    # Nobody else can give a block: it is swapped out itself, and the engine has nothing to compute.
    while not fixture.engine.load().num_swapped:
        fixture.engine.pin("barrier", ()).result(DEADLINE)
        fixture.engine.release("barrier")
    fixture.engine.release("export")
    fixture.finish(alone)


@OVERLAPS
def test_moves_are_timed_for_the_policy_and_steps_for_the_load(overlaps: bool) -> None:
    fixture = Fixture(num_blocks=5, overlaps=overlaps)
    fixture.start(A, B)
    fixture.finish(A, B)
    steps = fixture.policy.steps
    assert len(steps) > 5
    assert {moved for moved, _ in steps} == {True, False}
    for moved, move_seconds in steps:
        assert (move_seconds > 0) == moved
    assert fixture.engine.load().prefill_rate.is_known


@OVERLAPS
def test_a_move_that_fails_ends_every_request(
    overlaps: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = Fixture(num_blocks=5, overlaps=overlaps)
    fixture.start(A, B)
    fixture.runner.moves_fail = True
    fixture.runner.go_on.set()
    fixture.inbox.wait_for_end("a", "b")
    for name in ("a", "b"):
        assert fixture.inbox.ends[name].finish_reason is FinishReason.ERROR
    fixture.engine.stop()
    assert "engine stopped by a bug" in capsys.readouterr().out
