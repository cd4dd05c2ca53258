"""A peer goes round the replicas, one at a time, and begins anywhere."""

from __future__ import annotations

from pagemesh.membership.replicas import KvStoreReplicas


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
