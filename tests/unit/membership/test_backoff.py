"""Waits between attempts."""

from __future__ import annotations

from pagemesh.membership.backoff import Backoff


def test_waits_double_up_to_the_longest_and_are_cut_by_half_at_most() -> None:
    backoff = Backoff(first=0.1, longest=0.5)
    for longest in (0.1, 0.2, 0.4, 0.5, 0.5):
        assert longest / 2 <= backoff.next_delay() <= longest


def test_waits_differ_between_peers() -> None:
    assert len({Backoff().next_delay() for _ in range(20)}) == 20


def test_after_a_success_the_waits_start_again() -> None:
    backoff = Backoff(first=0.1, longest=10.0)
    for _ in range(5):
        backoff.next_delay()
    backoff.reset()
    assert backoff.next_delay() <= 0.1
