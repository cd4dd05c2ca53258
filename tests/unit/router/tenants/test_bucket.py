"""Nobody gets more than the size and what came back since, and everybody as much as that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemesh.router.tenants.bucket import Bucket
from tests.fakes.clock import FakeClock

PER_MINUTE = 60
WAITS = st.floats(0, 90)
AMOUNTS = st.integers(1, 2 * PER_MINUTE)


def make_bucket(size: float = PER_MINUTE) -> tuple[Bucket, FakeClock]:
    clock = FakeClock()
    return Bucket(size, PER_MINUTE / 60, clock), clock


def test_what_is_taken_comes_back_steadily_and_never_more_than_the_size() -> None:
    bucket, clock = make_bucket()
    bucket.take(60)
    assert bucket.level == 0
    clock.advance(30)
    assert bucket.level == 30
    assert bucket.seconds_until(30) == 0
    assert bucket.seconds_until(31) == 1
    clock.advance(1000)
    assert bucket.level == 60


def test_more_than_the_size_is_there_when_it_is_full() -> None:
    bucket, clock = make_bucket(size=20)
    assert bucket.seconds_until(50) == 0
    bucket.take(50)
    # In debt, until what was taken came back.
    assert bucket.seconds_until(1) == 31
    clock.advance(31)
    assert bucket.level == 1


def test_what_was_not_used_is_given_back() -> None:
    bucket, _ = make_bucket()
    bucket.take(50)
    bucket.take(-45)
    assert bucket.level == 55
    bucket.take(-45)
    assert bucket.level == 60


def test_another_size_keeps_what_was_taken() -> None:
    bucket, clock = make_bucket()
    bucket.take(50)
    bucket.resize(120, 2)
    assert bucket.level == 70
    clock.advance(5)
    assert bucket.level == 80
    bucket.resize(10, 1 / 6)
    assert bucket.level == -30


@given(steps=st.lists(st.tuples(WAITS, AMOUNTS), min_size=1, max_size=30))
def test_no_window_of_a_minute_sees_more_than_burst_and_rate(
    steps: list[tuple[float, int]],
) -> None:
    bucket, clock = make_bucket()
    taken: list[tuple[float, int]] = []
    for wait, amount in steps:
        clock.advance(wait)
        if amount <= bucket.size and not bucket.seconds_until(amount):
            bucket.take(amount)
            taken.append((clock(), amount))
    for start, _ in taken:
        in_window = sum(amount for at, amount in taken if start <= at < start + 60)
        assert in_window <= bucket.size + PER_MINUTE + 1e-6


@given(steps=st.lists(st.tuples(WAITS, AMOUNTS), min_size=1, max_size=30))
def test_whoever_waits_as_long_as_told_gets_it_and_no_sooner(
    steps: list[tuple[float, int]],
) -> None:
    bucket, clock = make_bucket()
    for wait, amount in steps:
        clock.advance(wait)
        told = bucket.seconds_until(amount)
        if told:
            clock.advance(0.99 * told)
            assert bucket.seconds_until(amount) == pytest.approx(0.01 * told)
            clock.advance(0.01 * told)
        assert bucket.seconds_until(amount) == 0
        bucket.take(amount)
