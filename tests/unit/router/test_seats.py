"""How much workers can work on."""

from __future__ import annotations

from typing import Any

import pytest

from pagemesh.router.routing.candidate import OwnLoad, Role
from pagemesh.router.routing.seats import FORGET_S, LONG_QUEUE_S, QUEUED_S, Load, SeatCount, Seats
from tests.fakes.clock import FakeClock
from tests.unit.router.routing_builders import RATE, make_facts


def worker(worker_id: str = "a", own: OwnLoad | None = None, **facts: Any) -> Load:
    return Load(make_facts(worker_id, **{"max_num_seqs": 8, **facts}), own or OwnLoad())


def queued(num_running: int = 3, num_queued: int = 5, **facts: Any) -> Load:
    return worker(num_running=num_running, num_waiting=num_queued, num_queued=num_queued, **facts)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def seats(clock: FakeClock) -> Seats:
    return Seats(clock)


def test_all_seats_count_as_long_as_nobody_queues(seats: Seats) -> None:
    workers = [worker("a"), worker("b", max_num_seqs=4, num_running=4)]
    assert seats.count(workers, []) == SeatCount(2, 12, 4)


def test_nobody_has_no_seats(seats: Seats) -> None:
    assert seats.count([], [worker("p", role=Role.PREFILL)]) == SeatCount(0, 0, 0)


def test_what_has_just_come_is_no_queue(seats: Seats, clock: FakeClock) -> None:
    assert seats.count([queued()], []).num_seats == 8
    clock.advance(QUEUED_S / 2)
    assert seats.count([worker()], []).num_seats == 8
    clock.advance(QUEUED_S / 2)
    assert seats.count([queued()], []).num_seats == 8


def test_a_worker_that_has_queued_for_a_while_is_full_with_what_it_has(
    seats: Seats, clock: FakeClock
) -> None:
    seats.count([queued()], [])
    clock.advance(QUEUED_S + 0.01)
    assert seats.count([queued()], []).num_seats == 3
    # One that waits for KV on its way has a seat, too.
    importing = worker(num_running=3, num_waiting=4, num_queued=2)
    assert seats.count([importing], []).num_seats == 5
    assert seats.count([queued(0)], []).num_seats == 1


def test_so_is_one_that_has_long_prompts_to_compute(seats: Seats) -> None:
    num_tokens = round(LONG_QUEUE_S * 1000)
    busy = queued(prefill_rate=RATE, num_pending_tokens=num_tokens)
    assert seats.count([busy], []).num_seats == 3
    alone = worker("b", num_running=1, prefill_rate=RATE, num_pending_tokens=10 * num_tokens)
    assert seats.count([alone], []).num_seats == 8


def test_seats_come_back_step_by_step_when_the_queue_is_gone(
    seats: Seats, clock: FakeClock
) -> None:
    seats.count([queued(max_num_seqs=64)], [])
    clock.advance(QUEUED_S + 0.01)
    seats.count([queued(max_num_seqs=64)], [])
    free = worker(num_running=3, max_num_seqs=64)
    assert [seats.count([free], []).num_seats for _ in range(5)] == [4, 6, 8, 11, 14]


def test_a_worker_that_nobody_looked_at_for_long_has_all_seats(
    seats: Seats, clock: FakeClock
) -> None:
    seats.count([queued()], [])
    clock.advance(QUEUED_S + 0.01)
    assert seats.count([queued()], []).num_seats == 3
    clock.advance(FORGET_S + 0.1)
    assert seats.count([queued()], []).num_seats == 8


def test_who_queues_at_full_prefill_workers_makes_no_use_of_a_seat(
    seats: Seats, clock: FakeClock
) -> None:
    decode = worker("d", num_waiting=6)
    full = queued(1, 4, worker_id="p", role=Role.PREFILL)
    idle = worker("q", role=Role.PREFILL)
    seats.count([decode], [full])
    clock.advance(QUEUED_S + 0.01)
    assert seats.count([decode], [full, idle]).num_seats == 8
    assert seats.count([decode], [full]).num_seats == 4


def test_requests_of_other_routers_are_those_that_are_not_ones_own(seats: Seats) -> None:
    own = OwnLoad(num_requests=5, num_unreported=2, num_gone=1)
    # 3 of its own and one that is over are in the report: 4 are others'.
    assert seats.count([worker(num_running=8, own=own)], []).num_others == 4
    assert seats.count([worker(num_running=1, own=own)], []).num_others == 0
