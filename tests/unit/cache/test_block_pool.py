import pytest

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.cache.block_pool import BlockPool

A, B, C, D = (bytes([letter]) * 16 for letter in b"abcd")


def make_cached_pool(num_blocks: int, *tables: tuple[bytes, ...]) -> BlockPool:
    """A pool in which one table after the other was filled, named and freed."""
    pool = BlockPool(num_blocks)
    for names in tables:
        block_ids = pool.allocate(len(names))
        for block_id, name in zip(block_ids, names, strict=True):
            pool.store(block_id, name)
        pool.free(block_ids)
    pool.drain_events()
    return pool


def test_blocks_are_reused_last_and_handed_out_as_they_lie_in_memory() -> None:
    pool = BlockPool(5)
    assert pool.allocate(2) == [0, 1]
    pool.free([0, 1])
    assert pool.allocate(2) == [2, 3]
    assert pool.allocate(3) == [0, 1, 4]
    pool.check_integrity([range(5)])


def test_asking_for_too_much_is_answered_without_change() -> None:
    pool = BlockPool(3)
    assert pool.can_allocate(3)
    assert not pool.can_allocate(4)
    assert pool.num_free_blocks == 3


def test_unnamed_blocks_go_first_and_named_ones_tail_first() -> None:
    pool = make_cached_pool(5, (A, B), (C,))  # 0: A, 1: B, 2: C, unnamed: 3, 4
    assert [pool.allocate(1) for _ in range(5)] == [[3], [4], [1], [0], [2]]
    assert pool.drain_events().removed == (B, A, C)
    assert pool.longest_cached_prefix([A]) == []


def test_a_used_prefix_is_evicted_after_an_unused_one() -> None:
    pool = make_cached_pool(3, (A,), (B,), (C,))
    hits = pool.longest_cached_prefix([A])
    pool.acquire(hits)
    pool.free(hits)
    assert [pool.allocate(1) for _ in range(3)] == [[1], [2], [0]]


def test_the_longest_prefix_ends_at_the_first_miss() -> None:
    pool = make_cached_pool(4, (A, B), (D,))
    assert pool.longest_cached_prefix([A, B, C, D]) == [0, 1]
    assert pool.longest_cached_prefix([C, A]) == []


def test_the_digest_is_that_of_the_names_in_the_cache() -> None:
    one, two, six = (number.to_bytes(16, "big") for number in (1, 2, 6))
    pool = make_cached_pool(3, (one,), (two,), (six,))
    assert pool.cached_digest == CacheDigest(num_blocks=3, names_xor=5)
    pool.allocate(1)
    assert pool.cached_digest == CacheDigest(num_blocks=2, names_xor=4)
    pool.store(0, one)
    assert pool.cached_digest == CacheDigest(num_blocks=3, names_xor=5)
    assert pool.drain_events() == ((), ())


def test_the_digest_counts_a_name_once_and_none_without_a_prefix_cache() -> None:
    pool = BlockPool(2)
    for block_id in pool.allocate(2):
        pool.store(block_id, A)
    assert pool.cached_digest.num_blocks == 1
    off = BlockPool(1, enable_prefix_caching=False)
    (block_id,) = off.allocate(1)
    off.store(block_id, A)
    assert off.cached_digest == CacheDigest()


def test_held_blocks_are_not_evicted() -> None:
    pool = make_cached_pool(3, (A, B))
    pool.acquire([0, 1])
    assert not pool.can_allocate(2)
    assert pool.allocate(1) == [2]
    assert pool.longest_cached_prefix([A, B]) == [0, 1]
    pool.check_integrity([[0, 1], [2]])


def test_hits_that_are_free_do_not_count_as_room() -> None:
    pool = make_cached_pool(3, (A, B))
    assert pool.can_allocate(1, keeping=[0, 1])
    assert not pool.can_allocate(2, keeping=[0, 1])
    pool.acquire([0, 1])
    assert pool.can_allocate(1, keeping=[0, 1])


def test_a_shared_block_is_free_after_its_last_holder() -> None:
    pool = make_cached_pool(1, (A,))
    pool.acquire([0])
    pool.acquire([0])
    pool.free([0])
    assert pool.num_free_blocks == 0
    pool.free([0])
    assert pool.num_free_blocks == 1


def test_the_first_block_of_a_name_stays_the_named_one() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    pool.store(0, A)
    pool.store(1, A)
    assert pool.longest_cached_prefix([A]) == [0]
    pool.free([0])
    pool.free([1])
    assert pool.allocate(1) == [1]
    assert pool.drain_events() == ((A,), ())


def test_events_are_the_net_change() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.store(0, A)
    pool.free([0])
    pool.allocate(1)
    assert pool.drain_events() == ((), ())  # came and went

    pool.store(0, B)
    assert pool.drain_events() == ((B,), ())
    assert pool.drain_events() == ((), ())

    pool.free([0])
    pool.allocate(1)
    pool.store(0, B)
    assert pool.drain_events() == ((), ())  # went and came back


def test_without_prefix_caching_nothing_is_found_again() -> None:
    pool = BlockPool(2, enable_prefix_caching=False)
    pool.allocate(1)
    pool.store(0, A)
    pool.free([0])
    assert pool.longest_cached_prefix([A]) == []
    assert pool.cached_hashes() == ()
    assert pool.drain_events() == ((), ())
    pool.check_integrity([])


def test_freeing_a_free_block_is_a_bug() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.free([0])
    with pytest.raises(AssertionError, match="block 0 is not held"):
        pool.free([0])


@pytest.mark.parametrize("tables", [[], [[0], [0]], [[1]]], ids=["leak", "shared", "other"])
def test_integrity_fails_when_the_holders_are_not_those_that_are_known(
    tables: list[list[int]],
) -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="wrong reference count"):
        pool.check_integrity(tables)
