"""What the router's own requests keep busy."""

from __future__ import annotations

import pytest

from pagemesh.router.routing.candidate import LinkUse
from pagemesh.router.routing.in_flight import InFlight
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
    assert (in_flight.load("d").num_requests, in_flight.load("p").num_requests) == (2, 1)
    first.end_prefill()
    first.end_prefill()
    assert (in_flight.load("d").num_requests, in_flight.load("p").num_requests) == (2, 0)
    first.end()
    first.end()
    assert in_flight.load("d").num_requests == 1
    second.end()
    assert in_flight.load("d").num_requests == 0


def test_workers_and_links_are_busy_until_the_last_claim_ends() -> None:
    clock = FakeClock()
    in_flight = InFlight(clock)
    in_flight.begin(remote(2.0, 3.0))
    in_flight.begin(remote(1.0, 1.5))
    assert in_flight.load("p").queue_seconds == pytest.approx(2.0)
    assert in_flight.load("d").transfers == {"p": LinkUse(2, 3.0)}
    clock.advance(2.5)
    assert in_flight.load("p").queue_seconds == 0
    assert in_flight.load("d").transfers == {"p": LinkUse(2, 0.5)}
    assert in_flight.load("d").queue_seconds == 0
    assert in_flight.load("p").transfers == {}


def test_what_a_prompt_keeps_busy_is_free_with_its_kv_or_its_end() -> None:
    in_flight = InFlight(FakeClock())
    first, second = in_flight.begin(remote(2.0, 3.0)), in_flight.begin(remote(1.0, 1.5))
    first.end_prefill()
    assert in_flight.load("p").queue_seconds == pytest.approx(1.0)
    assert in_flight.load("d").transfers == {"p": LinkUse(1, 1.5)}
    second.end()
    first.end()
    assert in_flight.load("p").queue_seconds == 0
    assert in_flight.load("d").transfers == {}
    assert in_flight._ends == {}
