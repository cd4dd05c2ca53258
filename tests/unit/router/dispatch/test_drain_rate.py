"""How fast the queue moves."""

from __future__ import annotations

import pytest

from pagemesh.router.dispatch.drain_rate import MEMORY_S, MIN_S, DrainRate
from tests.fakes.clock import FakeClock


def drain(rate: DrainRate, clock: FakeClock, seconds: float, per_second: int) -> None:
    """Requests of two sequences and 30 tokens leave at this pace."""
    for _ in range(round(seconds * per_second)):
        clock.advance(1 / per_second)
        rate.note(clock(), 2, 30)


def test_nothing_is_known_before_the_queue_was_seen_to_move_for_a_while() -> None:
    rate, clock = DrainRate(), FakeClock()
    assert rate.tokens_per_second(clock()) is None
    rate.begin(clock())
    drain(rate, clock, MIN_S / 2, 10)
    assert rate.seats_per_second(clock()) is None
    drain(rate, clock, MIN_S, 10)
    assert rate.seats_per_second(clock()) == pytest.approx(20)
    assert rate.tokens_per_second(clock()) == pytest.approx(300)


def test_time_without_a_queue_does_not_count() -> None:
    rate, clock = DrainRate(), FakeClock()
    rate.begin(clock())
    drain(rate, clock, 4, 10)
    rate.end(clock())
    clock.advance(1000)
    assert rate.seats_per_second(clock()) == pytest.approx(20)
    rate.begin(clock())
    rate.begin(clock())
    drain(rate, clock, 4, 10)
    assert rate.seats_per_second(clock()) == pytest.approx(20)


def test_a_queue_that_stands_still_has_a_lower_rate() -> None:
    rate, clock = DrainRate(), FakeClock()
    rate.begin(clock())
    drain(rate, clock, 5, 10)
    clock.advance(5)
    assert rate.seats_per_second(clock()) == pytest.approx(10, rel=0.2)


def test_what_was_long_ago_is_forgotten() -> None:
    rate, clock = DrainRate(), FakeClock()
    rate.begin(clock())
    drain(rate, clock, MEMORY_S, 10)
    drain(rate, clock, 3 * MEMORY_S, 50)
    assert rate.seats_per_second(clock()) == pytest.approx(100, rel=0.1)
