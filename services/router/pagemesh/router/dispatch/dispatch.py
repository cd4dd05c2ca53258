"""Lets requests through to the workers of one model: at once while there is room, else in a fair order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pagemesh.errors import DeadlineError, OverloadedError, UnavailableError
from pagemesh.router.call import Call
from pagemesh.router.dispatch.drain_rate import DrainRate, RunTime
from pagemesh.router.dispatch.fair_queue import FairQueue
from pagemesh.router.dispatch.model_workers import ModelWorkers
from pagemesh.router.dispatch.seating import LOOK_S, Seating
from pagemesh.router.dispatch.turn import Turn
from pagemesh.router.dispatch.waiting_room import WaitingRoom
from pagemesh.router.tenants.caller import current_caller
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.admission import (
    ADMISSION_REJECTIONS,
    REQUESTS_QUEUED,
    REQUESTS_REFUSED,
)
from pagemesh.telemetry.metrics.registry import ModelMetrics
from pagemesh.telemetry.metrics.requests import REQUEST_QUEUE_TIME

NOBODY_S: Final = 5.0
"""Seconds for which requests wait for a worker of which there is none: it may just be starting again."""

MARGIN: Final = 2.0
"""Times that requests take as long as usual which must be left when a turn is predicted to come: with less, most that
the queue just lets through in time would miss their deadlines on workers, and what was computed would be lost."""


class Dispatch:
    """The way to the workers of one model. Belongs to one event loop.

    What a request needs is one `turn`, which says when it may go, and is held until it is over.
    """

    def __init__(
        self,
        model_name: str,
        workers: ModelWorkers,
        room: WaitingRoom,
        num_routers: int,
        metrics: Metrics,
    ) -> None:
        """So many routers send to these workers, of which each gets its part whatever others do."""
        self.model_name = model_name
        self._workers = workers
        self._room = room
        self._seating = Seating(workers, num_routers)
        self._queue = FairQueue()
        self._drain = DrainRate()
        self._run_time = RunTime()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        of_model = ModelMetrics(metrics, model_name)
        self._queue_time = of_model.histogram(REQUEST_QUEUE_TIME)
        rejections = of_model.counters(ADMISSION_REJECTIONS)
        self._rejected = rejections["max_num_queued_tokens",]
        refused = metrics.counter(REQUESTS_REFUSED)
        self._refused = {reason: refused.labels(reason) for reason in ("deadline", "no_worker")}
        of_model.gauge(REQUESTS_QUEUED).set_function(self._queue.__len__)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._queue)

    def retry_after(self, tenant: str) -> float:
        """Seconds until what a tenant has waiting will be on workers, as far as is known."""
        rate = self._drain.tokens_per_second(self._loop.time())
        return 0.0 if rate is None else self._queue.num_tokens_until_gone(tenant) / rate

    @contextmanager
    def turn(
        self, call: Call, priority: int, prompt_lengths: Sequence[int], max_tokens: Sequence[int]
    ) -> Iterator[Turn]:
        """A request's turn, that may have come at once, or comes later, until the block is left.

        `prompt_lengths` has the tokens of each prompt, `max_tokens` the most that each sequence may generate.
        OverloadedError when the turn would come too late for the call's deadline, UnavailableError when there is
        no worker. Whoever knows tells the turn what was used, and which sequences have ended.
        """
        turn = Turn(
            call.tenant,
            current_caller().tenant.limits.weight,
            priority,
            num_seats=len(max_tokens),
            num_tokens=sum(prompt_lengths)
            + sum(map(self._workers.num_expected_tokens, max_tokens)),
            deadline=call.deadline,
        )
        if not self._queue and self._has_room(self._loop.time()):
            self._seat(turn)
        else:
            self._wait(turn)
        try:
            yield turn
        finally:
            if turn.has_come:
                self._end(turn)
            elif self._queue.remove(turn):
                self._rest()

    def _has_room(self, now: float) -> bool:
        return self._seating.has_room(now, self._drain)

    def _seat(self, turn: Turn) -> None:
        now = self._loop.time()
        turn.has_come = True
        turn.on_seat_free = self._on_end
        self._seating.num_seated += turn.num_seats
        self._room.leave(turn.tenant)
        turn.came_at = now
        for _ in range(turn.num_seats):
            self._queue_time.observe(turn.queue_seconds)

    def _on_end(self, turn: Turn) -> None:
        """A sequence has ended by itself."""
        if turn.num_seats == 1:
            self._run_time.note(self._loop.time() - turn.came_at, turn.num_tokens)
        self._free(turn, 1)

    def _free(self, turn: Turn, num_seats: int) -> None:
        """Sequences have ended; with the last one, the request is on no worker any more."""
        turn.num_seats -= num_seats
        self._seating.num_seated -= num_seats
        if not turn.num_seats:
            self._room.enter(turn.tenant)
        self._go_on()

    def _end(self, turn: Turn) -> None:
        if turn.num_used_tokens is not None:
            self._queue.charge(turn, turn.num_used_tokens - turn.num_tokens)
        if turn.num_seats:
            if turn.num_seats == 1:
                self._run_time.note_cut_off(self._loop.time() - turn.came_at, turn.num_tokens)
            self._free(turn, turn.num_seats)

    def _wait(self, turn: Turn) -> None:
        now = self._loop.time()
        is_alone = self._seating.nobody_since is not None and not self._queue
        if is_alone and not self._workers.is_anybody_expected:
            self._refused["no_worker"].inc()
            raise self._workers.nobody()
        self._check_deadline(turn, now)
        turn.joined_at = now
        self._queue.push(turn)
        self._drain.begin(now)
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look_again)

    def _check_deadline(self, turn: Turn, now: float) -> None:
        """Refuse what would not be done in time, were there no other tenants."""
        rate = self._drain.tokens_per_second(now)
        if rate is None:
            return
        wait = self._queue.num_tokens_before(turn) / rate
        needed = wait + MARGIN * self._run_time.seconds(turn.num_tokens)
        left = turn.deadline - now
        if needed > left:
            self._refused["deadline"].inc()
            self._rejected.inc()
            raise OverloadedError(
                f"the request would wait for about {wait:.3g} s, and has {left:.3g} s left in all; try again later",
                reason="DEADLINE_UNREACHABLE",
                retry_after=min(wait, needed - left),
            )

    def _look_again(self) -> None:
        """Workers may have come, or have more room, and deadlines pass."""
        self._timer = None
        self._go_on()
        now = self._loop.time()
        for turn in self._queue.turns():
            if turn.deadline <= now:
                self._give_up(turn, DeadlineError("the request's time was over while it waited"))
        nobody_since = self._seating.nobody_since
        if nobody_since is not None and now - nobody_since >= NOBODY_S:
            for turn in self._queue.turns():
                self._give_up(turn, self._workers.nobody())
        if self._queue and self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look_again)

    def _go_on(self) -> None:
        """Let through who waits, as far as there is room."""
        now = self._loop.time()
        while self._queue and self._has_room(now):
            turn = self._queue.pop()
            # Half of those that just have the usual time make it. With less, all that comes out of the queue
            # behind a fall of the pace would be cut off on the workers, as late as the one in front of it.
            if turn.deadline - now < self._run_time.seconds(turn.num_tokens):
                self._queue.charge(turn, -turn.num_tokens)
                self._give_up(
                    turn, DeadlineError("the request waited until too little of its time was left")
                )
                continue
            self._drain.note(now, turn.num_seats, turn.num_tokens)
            self._seat(turn)
            assert turn.waiter is not None, "who waits is told"
            turn.waiter.proceed()
        self._rest()

    def _rest(self) -> None:
        """Look at the workers no more when nobody waits."""
        if not self._queue:
            self._drain.end(self._loop.time())
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _give_up(self, turn: Turn, error: DeadlineError | UnavailableError) -> None:
        self._queue.remove(turn)
        self._refused["deadline" if isinstance(error, DeadlineError) else "no_worker"].inc()
        assert turn.waiter is not None, "who waits is told"
        turn.waiter.fail(error)
        self._rest()
