"""What the router's own requests keep busy."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pagemesh.router.routing.candidate import LinkUse
from pagemesh.router.routing.in_flight import REPORT_LAG, Flight, InFlight
from pagemesh.router.routing.prefill_plan import PrefillPlan
from pagemesh.router.routing.route import Route
from pagemesh.router.routing.ways import Claim, Path
from tests.fakes.clock import FakeClock
from tests.unit.router.routing_builders import make_candidate, make_prefill_worker

DECODE, PREFILL = make_candidate("d"), make_prefill_worker("p")


def remote(computed_at: float = 0.0, sent_at: float = 0.0) -> Route:
    claims = (Claim("p", None, computed_at), Claim("d", "p", sent_at))
    return Route(DECODE, PrefillPlan(Path.REMOTE, (PREFILL,), claims=claims))


def test_requests_in_flight_are_counted_until_they_end() -> None:
    in_flight = InFlight(FakeClock())
    first, second = in_flight.begin(remote()), in_flight.begin(Route(DECODE))
    assert (in_flight.load("d", None).num_requests, in_flight.load("p", None).num_requests) == (
        2,
        1,
    )
    first.end_prefill()
    first.end_prefill()
    assert (in_flight.load("d", None).num_requests, in_flight.load("p", None).num_requests) == (
        2,
        0,
    )
    first.end()
    first.end()
    assert in_flight.load("d", None).num_requests == 1
    second.end()
    assert in_flight.load("d", None).num_requests == 0


def test_workers_and_links_are_busy_until_the_last_claim_ends() -> None:
    clock = FakeClock()
    in_flight = InFlight(clock)
    in_flight.begin(remote(2.0, 3.0))
    in_flight.begin(remote(1.0, 1.5))
    assert in_flight.load("p", None).queue_seconds == pytest.approx(2.0)
    assert in_flight.load("d", None).transfers == {"p": LinkUse(2, 3.0)}
    clock.advance(2.5)
    assert in_flight.load("p", None).queue_seconds == 0
    assert in_flight.load("d", None).transfers == {"p": LinkUse(2, 0.5)}
    assert in_flight.load("d", None).queue_seconds == 0
    assert in_flight.load("p", None).transfers == {}


def test_what_a_prompt_keeps_busy_is_free_with_its_kv_or_its_end() -> None:
    in_flight = InFlight(FakeClock())
    first, second = in_flight.begin(remote(2.0, 3.0)), in_flight.begin(remote(1.0, 1.5))
    first.end_prefill()
    assert in_flight.load("p", None).queue_seconds == pytest.approx(1.0)
    assert in_flight.load("d", None).transfers == {"p": LinkUse(1, 1.5)}
    second.end()
    first.end()
    assert in_flight.load("p", None).queue_seconds == 0
    assert in_flight.load("d", None).transfers == {}
    assert not any(busy.is_used for busy in in_flight._busy.values())


def test_the_report_counts_with_what_it_does_not_know_yet_and_without_what_is_over() -> None:
    clock = FakeClock()
    in_flight = InFlight(clock)
    flights = [in_flight.begin(Route(DECODE), num_blocks=5) for _ in range(3)]
    clock.advance(1)
    reported_at = clock()
    clock.advance(0.05)
    flights[0].end()
    in_flight.begin(Route(DECODE), num_blocks=7)
    assert in_flight.load("d", reported_at)[:4] == (3, 1, 7, 1)
    flights[1].end()
    assert in_flight.load("d", reported_at)[:4] == (2, 1, 7, 2)
    # The next report knows of all that.
    assert in_flight.load("d", clock() + 0.1)[:4] == (2, 0, 0, 0)


def test_what_was_sent_just_before_a_report_is_not_in_it() -> None:
    clock = FakeClock()
    in_flight = InFlight(clock)
    flight = in_flight.begin(Route(DECODE), num_blocks=4)
    clock.advance(0.01)
    reported_at = clock()
    assert in_flight.load("d", reported_at)[:4] == (1, 1, 4, 0)
    clock.advance(0.01)
    flight.end()
    assert in_flight.load("d", reported_at)[:4] == (0, 0, 0, 0)


class _Watched(deque[Any]):
    num_looks = 0

    def __iter__(self) -> Iterator[Any]:
        self.num_looks += 1
        return super().__iter__()


def test_ended_requests_are_gone_through_once_for_each_report_and_not_for_each_decision() -> None:
    clock = FakeClock()
    in_flight = InFlight(clock)
    flights = [in_flight.begin(Route(DECODE)) for _ in range(100)]
    clock.advance(1)
    reported_at = clock()
    ended = in_flight._busy["d"].ended = _Watched()
    for number, flight in enumerate(flights):
        assert in_flight.load("d", reported_at).num_gone == number
        clock.advance(0.001)
        flight.end()
    assert ended.num_looks == 1
    assert in_flight.load("d", clock() + 1).num_gone == 0
    assert ended.num_looks == 2


def test_of_a_worker_that_reports_nothing_any_more_the_last_requests_that_ended_count() -> None:
    clock = FakeClock()
    in_flight = InFlight(clock)
    flights = [in_flight.begin(Route(DECODE)) for _ in range(5000)]
    clock.advance(1)
    reported_at = clock()
    assert in_flight.load("d", reported_at).num_gone == 0
    clock.advance(1)
    for flight in flights:
        flight.end()
    assert in_flight.load("d", reported_at).num_gone == 4096
    # Those that began later push them out.
    for _ in range(96):
        in_flight.begin(Route(DECODE)).end()
    assert in_flight.load("d", reported_at).num_gone == 4000


@given(
    st.lists(
        st.one_of(
            st.floats(0.001, 0.1), st.sampled_from(["begin", "end", "report", "silence", "ask"])
        ),
        max_size=60,
    )
)
@example(["begin", 0.05, "report", "ask", "end", "ask"])
def test_counts_are_those_of_going_through_all_requests(steps: list[float | str]) -> None:
    clock = FakeClock()
    in_flight = InFlight(clock)
    running, ended = dict[Flight, float](), list[tuple[float, float]]()
    reported_at: float | None = None
    for step in [*steps, "ask"]:
        if step == "begin":
            running[in_flight.begin(Route(DECODE), num_blocks=len(running))] = clock()
        elif step == "end" and running:
            flight = next(iter(running))
            flight.end()
            ended.append((running.pop(flight), clock()))
        elif step == "report":
            reported_at = clock()
        elif step == "silence":
            reported_at = None
        elif isinstance(step, float):
            clock.advance(step)
        elif step == "ask":
            known = -math.inf if reported_at is None else reported_at - REPORT_LAG
            new = [f for f, began in running.items() if began > known and reported_at is not None]
            gone = [
                began
                for began, over in ended
                if began <= known and reported_at is not None and over > reported_at
            ]
            load = in_flight.load("d", reported_at)
            assert load[:4] == (len(running), len(new), sum(f.num_blocks for f in new), len(gone))


@pytest.mark.parametrize(
    ("reported", "own", "num_requests"),
    [
        # Others' requests are in the report, and so are our own that it knows of.
        ((3, 2), {"num_requests": 2}, 5),
        ((3, 2), {"num_requests": 4, "num_unreported": 3}, 8),
        ((3, 2), {"num_requests": 0, "num_gone": 2}, 3),
        # Before the first report, and when one is lost.
        ((0, 0), {"num_requests": 4}, 4),
        ((1, 0), {"num_requests": 4}, 4),
    ],
)
def test_requests_of_other_routers_count_and_own_ones_once(
    reported: tuple[int, int], own: dict[str, int], num_requests: int
) -> None:
    num_running, num_waiting = reported
    worker = make_candidate("d", num_running=num_running, num_waiting=num_waiting, **own)
    assert worker.num_requests == num_requests


def test_workers_that_nothing_is_in_flight_to_are_forgotten() -> None:
    in_flight = InFlight(FakeClock())
    kept = in_flight.begin(Route(make_candidate("kept")))
    for number in range(5000):
        in_flight.begin(Route(make_candidate(f"w{number}"))).end()
    assert len(in_flight._busy) <= 1024
    assert in_flight.load("kept", None).num_requests == 1
    kept.end()
