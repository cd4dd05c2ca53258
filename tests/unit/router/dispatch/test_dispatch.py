"""The way to the workers: open while they have room, and no place or seat is lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Any, cast

import pytest
from opentelemetry.trace import INVALID_SPAN

from pagemesh.errors import DeadlineError, OverloadedError, PagemeshError, UnavailableError
from pagemesh.router.call import Call
from pagemesh.router.dispatch.dispatch import Dispatch
from pagemesh.router.dispatch.model_workers import ModelWorkers
from pagemesh.router.dispatch.seating import MIN_AHEAD
from pagemesh.router.dispatch.turn import Turn
from pagemesh.router.dispatch.waiting_room import WaitingRoom
from pagemesh.router.routing.seats import SeatCount
from pagemesh.telemetry.metrics import Metrics


class FakeWorkers:
    """Says what it is told to."""

    def __init__(self) -> None:
        self.count = SeatCount(1, 4, 0)
        self.is_anybody_expected = False

    def seats(self) -> SeatCount:
        return self.count

    def num_expected_tokens(self, max_tokens: int) -> int:
        return max_tokens

    def nobody(self) -> UnavailableError:
        return UnavailableError("nobody")


class Waits:
    """A `Waiter` that remembers."""

    def __init__(self) -> None:
        self.has_gone = False
        self.error: PagemeshError | None = None

    def proceed(self) -> None:
        self.has_gone = True

    def fail(self, error: PagemeshError) -> None:
        self.error = error


class Stage:
    """A dispatch, and requests that come and go."""

    def __init__(self, num_routers: int = 1) -> None:
        self.workers = FakeWorkers()
        self.room = WaitingRoom(100)
        workers = cast(ModelWorkers, self.workers)
        self.metrics = Metrics()
        self.dispatch = Dispatch("m", workers, self.room, num_routers, self.metrics)
        self._stacks: dict[Turn, ExitStack] = {}

    def come(self, num_seats: int = 1, *, seconds: float = 60.0, **changes: Any) -> Turn:
        deadline = asyncio.get_running_loop().time() + seconds
        call = Call("r", INVALID_SPAN, deadline, 0, **changes)
        stack = ExitStack()
        self.room.enter(call.tenant)
        stack.callback(self.room.leave, call.tenant)
        try:
            turn = stack.enter_context(self.dispatch.turn(call, 0, [10], [5] * num_seats))
        except PagemeshError:
            stack.close()
            raise
        turn.waiter = Waits()
        self._stacks[turn] = stack
        return turn

    def leave(self, turn: Turn) -> None:
        self._stacks.pop(turn).close()

    def check_empty(self) -> None:
        for turn in list(self._stacks):
            self.leave(turn)
        assert (
            self.room.num_waiting,
            self.dispatch._seating.num_seated,
            len(self.dispatch._queue),
        ) == (
            0,
            0,
            0,
        )
        assert self.dispatch._timer is None


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def until(waits: Turn) -> Waits:
    """Wait until a turn has come, or never will."""
    waiter = cast(Waits, waits.waiter)
    deadline = time.monotonic() + 5
    while not waiter.has_gone and waiter.error is None:
        assert time.monotonic() < deadline, "nobody was told"
        await asyncio.sleep(0.005)
    return waiter


async def test_requests_pass_until_seats_and_a_few_more_are_taken(stage: Stage) -> None:
    turns = [stage.come() for _ in range(4 + MIN_AHEAD + 2)]
    assert [turn.has_come for turn in turns] == [True] * (4 + MIN_AHEAD) + [False] * 2
    assert (stage.dispatch.num_waiting, stage.room.num_waiting) == (2, 2)
    stage.leave(turns[0])
    assert turns[-2].has_come and cast(Waits, turns[-2].waiter).has_gone
    assert not turns[-1].has_come
    stage.check_empty()


async def test_a_large_request_passes_when_there_is_any_room(stage: Stage) -> None:
    assert stage.come(num_seats=50).has_come
    assert not stage.come().has_come
    stage.check_empty()


async def test_a_seat_is_free_when_its_sequence_has_ended(stage: Stage) -> None:
    several = stage.come(num_seats=4 + MIN_AHEAD)
    waiting = [stage.come(), stage.come()]
    several.end_seat()
    assert [turn.has_come for turn in waiting] == [True, False]
    assert stage.room.num_waiting == 1
    while several.num_seats:
        several.end_seat()
    several.end_seat()
    # Who is still there without any seat, as its client reads slowly, counts in the room again.
    assert stage.room.num_waiting == 1
    assert stage.dispatch._seating.num_seated == 2
    stage.check_empty()


async def test_who_leaves_the_queue_takes_no_seat(stage: Stage) -> None:
    first = stage.come(num_seats=9)
    gone, last = stage.come(), stage.come()
    stage.leave(gone)
    gone.end_seat()
    stage.leave(first)
    assert (gone.has_come, last.has_come) == (False, True)
    stage.check_empty()


async def test_a_deadline_ends_the_wait(stage: Stage) -> None:
    stage.come(num_seats=9)
    late = stage.come(seconds=0.1)
    assert isinstance((await until(late)).error, DeadlineError)
    assert stage.dispatch.num_waiting == 0
    stage.check_empty()


async def test_more_room_is_noticed(stage: Stage) -> None:
    stage.come(num_seats=9)
    waiting = stage.come()
    stage.workers.count = SeatCount(2, 12, 0)
    assert (await until(waiting)).has_gone
    stage.check_empty()


async def test_nobody_waits_where_there_is_no_worker(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagemesh.router.dispatch.dispatch.NOBODY_S", 0.1)
    stage.come(num_seats=9)
    waiting = stage.come()
    stage.workers.count = SeatCount(0, 0, 0)
    assert isinstance((await until(waiting)).error, UnavailableError)
    with pytest.raises(UnavailableError):
        stage.come()
    stage.check_empty()


async def test_a_worker_that_is_out_of_reach_for_a_moment_is_waited_for(stage: Stage) -> None:
    there, stage.workers.count = stage.workers.count, SeatCount(0, 0, 0)
    stage.workers.is_anybody_expected = True
    waiting = stage.come()
    assert not waiting.has_come
    stage.workers.count = there
    assert (await until(waiting)).has_gone
    stage.check_empty()


@pytest.mark.parametrize(
    ("num_routers", "num_others", "num_passed"),
    [
        pytest.param(1, 0, 20, id="alone"),
        pytest.param(1, 6, 14, id="what others leave"),
        pytest.param(1, 19, 10, id="half, whatever others do"),
        pytest.param(4, 19, 5, id="its part, whatever others do"),
    ],
)
async def test_seats_are_shared_with_other_routers(
    num_routers: int, num_others: int, num_passed: int
) -> None:
    stage = Stage(num_routers)
    stage.workers.count = SeatCount(1, 20, num_others)
    turns = [stage.come() for _ in range(30)]
    assert sum(turn.has_come for turn in turns) == num_passed + MIN_AHEAD
    stage.check_empty()


async def test_a_wait_beyond_the_deadline_is_refused_once_the_pace_is_known(stage: Stage) -> None:
    turns = [stage.come() for _ in range(4 + MIN_AHEAD + 20)]
    stage.come(seconds=1)  # nobody knows yet
    for turn in turns[:12]:
        await asyncio.sleep(0.1)
        stage.leave(turn)
    # They ran for 0.6 s. Ten a second, and 8 before it.
    assert stage.dispatch.retry_after("") == pytest.approx(0.9, rel=0.3)
    with pytest.raises(OverloadedError, match=r"0\.(2|19\d) s left") as refused:
        stage.come(seconds=0.2)
    assert refused.value.reason == "DEADLINE_UNREACHABLE"
    labels = {"model_name": "m", "engine": "0", "reason": "max_num_queued_tokens"}
    value = stage.metrics.registry.get_sample_value
    assert value("vllm:admission_rejections_total", labels) == 1
    assert refused.value.retry_after == pytest.approx(0.7, rel=0.4)
    assert not stage.come(seconds=3.0).has_come
    stage.check_empty()


async def test_there_must_be_time_to_run_behind_the_wait(stage: Stage) -> None:
    turns = [stage.come() for _ in range(4 + MIN_AHEAD + 13)]
    for number, turn in enumerate(turns[:12]):
        await asyncio.sleep(0.1)
        turn.end_seat()
        stage.leave(turn)
        assert turn.num_seats == 0, number
    # Each of the last ones ran for 0.6 s, and one waits now.
    assert not stage.come(seconds=2.0).has_come
    with pytest.raises(OverloadedError):
        stage.come(seconds=1.0)
    stage.check_empty()


async def test_whose_turn_comes_too_late_is_not_sent(stage: Stage) -> None:
    first = [stage.come() for _ in range(4 + MIN_AHEAD)]
    await asyncio.sleep(0.5)
    first[0].end_seat()
    late, next_one = stage.come(seconds=60), stage.come(seconds=60)
    assert late.has_come  # the seat was free
    # It would need 0.5 s.
    hurried = stage.come(seconds=0.4)
    first[1].end_seat()
    assert next_one.has_come
    first[2].end_seat()
    assert isinstance(cast(Waits, hurried.waiter).error, DeadlineError)
    assert not hurried.has_come
    stage.check_empty()


async def test_workers_that_became_too_slow_are_sent_only_what_they_can_finish(
    stage: Stage,
) -> None:
    first = [stage.come() for _ in range(4 + MIN_AHEAD)]
    await asyncio.sleep(0.1)
    first[0].end_seat()
    await asyncio.sleep(0.5)
    # None of these was over when its time was.
    for turn in first[1:4]:
        stage.leave(turn)
    assert all(stage.come().has_come for _ in range(4))
    in_time = stage.come(seconds=0.4)
    stage.leave(first[4])
    assert isinstance(cast(Waits, in_time.waiter).error, DeadlineError)
    stage.check_empty()
