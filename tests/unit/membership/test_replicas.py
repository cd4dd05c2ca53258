"""A peer goes round the replicas, one at a time, begins anywhere, and waits between attempts."""

from __future__ import annotations

from pagemesh.membership.replicas import FIRST_S, LONGEST_S, Backoff, KvStoreReplicas


def test_the_next_one_is_taken_each_time_and_after_the_last_the_first() -> None:
    replicas = KvStoreReplicas("a:1,b:1,c:1", first=1)
    used = [replicas.present]
    for _ in range(3):
        assert replicas.move_on()
        used.append(replicas.present)
    assert used == ["b:1", "c:1", "a:1", "b:1"]


def test_a_single_one_is_kept() -> None:
    replicas = KvStoreReplicas("a:1")
    assert not replicas.move_on()
    assert replicas.present == "a:1"


def test_peers_spread_over_all() -> None:
    begun = [KvStoreReplicas("a:1,b:1").present for _ in range(64)]
    assert set(begun) == {"a:1", "b:1"}


def test_waits_double_up_to_the_longest_and_are_cut_by_half_at_most() -> None:
    backoff = Backoff()
    longest = FIRST_S
    for _ in range(8):
        assert longest / 2 <= backoff.next_delay() <= longest
        longest = min(LONGEST_S, 2 * longest)


def test_whoever_is_back_is_found_within_half_a_second() -> None:
    backoff = Backoff()
    assert max(backoff.next_delay() for _ in range(100)) <= 0.5


def test_waits_differ_between_peers() -> None:
    assert len({Backoff().next_delay() for _ in range(20)}) == 20


def test_after_a_success_the_waits_start_again() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.next_delay()
    backoff.reset()
    assert backoff.next_delay() <= FIRST_S
