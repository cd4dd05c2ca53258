"""When a kvstore that does not answer is asked again."""

from __future__ import annotations

from pagemesh.membership.directory import LookupBreaker
from tests.fakes.clock import FakeClock


def make_open(clock: FakeClock) -> LookupBreaker:
    """A breaker behind three lookups in vain."""
    breaker = LookupBreaker(clock)
    for _ in range(3):
        assert breaker.may_ask()
        breaker.on_silence()
    return breaker


def test_three_lookups_in_vain_make_a_pause_and_fewer_do_not() -> None:
    clock = FakeClock()
    breaker = LookupBreaker(clock)
    for silent in (True, True, False, True, True):
        assert breaker.may_ask()
        if silent:
            breaker.on_silence()
        else:
            breaker.on_answer()
    assert not breaker.is_open
    breaker.on_silence()
    assert breaker.is_open
    assert not breaker.may_ask()


def test_one_tries_behind_each_pause_while_all_others_go_without() -> None:
    clock = FakeClock()
    breaker = make_open(clock)
    clock.advance(0.26)
    assert [breaker.may_ask() for _ in range(5)] == [True, False, False, False, False]


def test_pauses_grow_to_two_seconds_and_an_answer_ends_them() -> None:
    clock = FakeClock()
    breaker = make_open(clock)
    pauses = []
    for _ in range(6):
        waited = 0.0
        while not breaker.may_ask():
            clock.advance(0.125)
            waited += 0.125
        pauses.append(waited)
        breaker.on_silence()
    assert pauses == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    clock.advance(2.0)
    assert breaker.may_ask()
    breaker.on_answer()
    assert [breaker.may_ask() for _ in range(5)] == [True] * 5
    for _ in range(3):
        breaker.on_silence()
    clock.advance(0.25)
    assert breaker.may_ask()


def test_lookups_that_were_under_way_together_make_one_short_pause() -> None:
    clock = FakeClock()
    breaker = LookupBreaker(clock)
    assert all(breaker.may_ask() for _ in range(50))
    began = [breaker.on_silence() for _ in range(50)]
    assert began == [False, False, True] + [False] * 47
    clock.advance(0.25)
    assert breaker.may_ask()


def test_a_try_that_was_given_up_is_followed_by_another_one() -> None:
    clock = FakeClock()
    breaker = make_open(clock)
    clock.advance(0.25)
    assert breaker.may_ask()
    clock.advance(0.25)
    assert breaker.may_ask()
