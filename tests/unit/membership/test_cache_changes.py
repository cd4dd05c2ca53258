"""What of a cache's changes is reported."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagemesh.cache.block_hash import CacheDigest, xor_hashes
from pagemesh.core.engine import StepOutput
from pagemesh.membership.cache_changes import RECALLED_BLOCKS, CacheChanges, CacheEventBuffer
from tests.unit.kvstore.builders import make_block, make_blocks

SOME = CacheDigest(3, 7)
OTHER = CacheDigest(2, 5)


def make_buffer(*snapshot: int, max_changes: int = 10) -> CacheEventBuffer:
    """A buffer that has reported a snapshot."""
    buffer = CacheEventBuffer(max_changes)
    buffer.add(StepOutput(cache_snapshot=make_blocks(*snapshot), cache_digest=SOME))
    buffer.take()
    return buffer


def step(
    *, stored: tuple[int, ...] = (), removed: tuple[int, ...] = (), digest: CacheDigest = SOME
) -> StepOutput:
    return StepOutput(
        stored_block_hashes=make_blocks(*stored),
        removed_block_hashes=make_blocks(*removed),
        cache_digest=digest,
    )


FORGET_ALL = CacheChanges(cleared=True, removed=[], stored=[], digest=None)


def test_nothing_counts_before_the_first_snapshot() -> None:
    buffer = CacheEventBuffer(max_changes=10)
    buffer.add(step(stored=(1, 2)))
    assert buffer.awaits_snapshot
    assert buffer.take() == FORGET_ALL
    buffer.add(step(stored=(3,)))
    assert buffer.is_empty


def test_a_snapshot_is_everything_there_is() -> None:
    buffer = CacheEventBuffer(max_changes=10)
    buffer.add(
        StepOutput(
            stored_block_hashes=make_blocks(3),
            removed_block_hashes=make_blocks(1),
            cache_snapshot=make_blocks(2, 3),
            cache_digest=SOME,
        )
    )
    assert not buffer.awaits_snapshot
    assert buffer.take() == CacheChanges(True, removed=[], stored=make_blocks(2, 3), digest=SOME)


def test_an_empty_snapshot_is_reported_too() -> None:
    buffer = CacheEventBuffer(max_changes=10)
    buffer.add(StepOutput(cache_snapshot=[], cache_digest=CacheDigest()))
    assert not buffer.is_empty
    assert buffer.take() == CacheChanges(True, removed=[], stored=[], digest=CacheDigest())
    assert buffer.is_empty


def test_changes_behind_an_unreported_snapshot_are_added_to_it() -> None:
    buffer = CacheEventBuffer(max_changes=10)
    buffer.add(StepOutput(cache_snapshot=make_blocks(1, 2), cache_digest=SOME))
    buffer.add(step(stored=(3,), removed=(1,), digest=OTHER))
    assert buffer.take() == CacheChanges(True, removed=[], stored=make_blocks(2, 3), digest=OTHER)


def test_only_what_changes_came_to_is_reported() -> None:
    buffer = make_buffer()
    buffer.add(step(stored=(1, 2)))
    buffer.add(step(removed=(1,)))
    buffer.add(step(stored=(3,), removed=(2,)))
    buffer.add(step(stored=(2,)))
    changes = buffer.take()
    assert changes.removed == []
    assert set(changes.stored) == set(make_blocks(2, 3))


def test_a_block_that_left_and_came_back_is_no_change() -> None:
    buffer = make_buffer(1)
    buffer.add(step(stored=(1,), removed=(1,)))
    assert buffer.take() == CacheChanges(False, removed=[], stored=[], digest=SOME)


def test_what_was_taken_is_not_reported_again() -> None:
    buffer = make_buffer()
    buffer.add(step(stored=(1,)))
    buffer.take()
    assert buffer.take() == CacheChanges(False, removed=[], stored=[], digest=SOME)


def test_too_many_changes_are_given_up_for_a_snapshot() -> None:
    buffer = make_buffer(max_changes=3)
    buffer.add(step(stored=(1, 2, 3)))
    assert not buffer.awaits_snapshot
    buffer.add(step(stored=(4,)))
    assert buffer.awaits_snapshot
    buffer.add(step(stored=(5,)))
    assert buffer.take() == FORGET_ALL


def test_discarding_waits_for_the_next_snapshot() -> None:
    buffer = make_buffer()
    buffer.add(step(stored=(1,)))
    buffer.discard()
    buffer.add(step(stored=(2,)))
    assert buffer.take() == FORGET_ALL
    buffer.add(StepOutput(cache_snapshot=make_blocks(1, 2, 3), cache_digest=SOME))
    assert set(buffer.take().stored) == set(make_blocks(1, 2, 3))


def test_what_was_reported_stays_while_a_snapshot_that_was_asked_for_is_awaited() -> None:
    buffer = make_buffer(1)
    buffer.add(step(stored=(2,)))
    buffer.await_snapshot()
    buffer.add(step(stored=(3,)))
    assert buffer.take() == CacheChanges(cleared=False, removed=[], stored=[], digest=None)
    buffer.add(StepOutput(cache_snapshot=make_blocks(3), cache_digest=OTHER))
    assert buffer.take() == CacheChanges(True, removed=[], stored=make_blocks(3), digest=OTHER)


def test_the_digest_is_that_of_the_last_change_of_the_cache() -> None:
    buffer = make_buffer()
    buffer.add(step(stored=(1,), digest=OTHER))
    buffer.add(StepOutput())
    assert buffer.take().digest == OTHER
    buffer.add(StepOutput())
    assert buffer.take().digest == OTHER


def resumed(known: CacheDigest, stored: tuple[int, ...] = ()) -> CacheChanges:
    return CacheChanges(False, [], make_blocks(*stored), OTHER, resumed=known)


def test_a_kvstore_that_has_missed_reports_is_told_what_they_came_to() -> None:
    buffer = make_buffer(1, 2)
    buffer.add(step(stored=(3, 4), digest=CacheDigest(4, 4)))
    buffer.take()
    buffer.add(step(removed=(1, 3), digest=CacheDigest(2, 6)))
    buffer.take()
    buffer.add(step(stored=(1, 5), digest=OTHER))
    assert buffer.resume(SOME)
    assert buffer.take() == resumed(SOME, stored=(4, 5))
    assert buffer.take() == CacheChanges(False, removed=[], stored=[], digest=OTHER)


def test_a_kvstore_that_has_missed_nothing_is_told_only_that() -> None:
    buffer = make_buffer(1)
    buffer.add(step(stored=(2,), digest=OTHER))
    buffer.take()
    assert buffer.resume(OTHER)
    assert buffer.take() == resumed(OTHER)
    # It may be gone again before it has heard that.
    assert buffer.resume(OTHER)
    assert buffer.take() == resumed(OTHER)


def test_a_kvstore_that_knows_something_else_needs_a_snapshot() -> None:
    buffer = make_buffer(1)
    buffer.add(step(stored=(2,), digest=OTHER))
    assert not buffer.resume(OTHER)
    assert buffer.take() == CacheChanges(False, removed=[], stored=make_blocks(2), digest=OTHER)
    buffer.discard()
    assert not buffer.resume(OTHER)
    assert buffer.take() == FORGET_ALL


def test_reports_of_before_a_snapshot_lead_nowhere() -> None:
    buffer = make_buffer(1)
    buffer.add(StepOutput(cache_snapshot=make_blocks(2), cache_digest=OTHER))
    assert not buffer.resume(SOME)
    buffer.take()
    assert not buffer.resume(SOME)
    assert buffer.resume(OTHER)


def test_no_more_than_the_last_reports_are_remembered() -> None:
    buffer = make_buffer(max_changes=RECALLED_BLOCKS)
    half = RECALLED_BLOCKS // 2
    for number in range(1, 4):
        blocks = range(number * half, (number + 1) * half)
        buffer.add(step(stored=tuple(blocks), digest=CacheDigest(number * half, number)))
        buffer.take()
    assert not buffer.resume(SOME)
    assert buffer.resume(CacheDigest(half, 1))
    assert len(buffer.take().stored) == 2 * half


BLOCKS = st.integers(0, 7).map(make_block)
STEPS = st.one_of(
    # Names to store and to remove as far as that is possible, and whether a snapshot is wanted.
    st.tuples(st.sets(BLOCKS, max_size=5), st.sets(BLOCKS, max_size=5), st.booleans()),
    st.sampled_from(["take", "take", "discard", "await"]),
    # How many reports a kvstore has missed that asks to be told of them.
    st.integers(0, 3),
)


def digest_of(cache: set[bytes]) -> CacheDigest:
    return CacheDigest(len(cache), xor_hashes(cache))


@given(st.lists(STEPS, max_size=40))
def test_a_digest_always_fits_what_was_reported_until_then(
    steps: list[tuple[set[bytes], set[bytes], bool] | str | int],
) -> None:
    buffer = CacheEventBuffer(max_changes=6)
    cache, reported = set[bytes](), set[bytes]()
    past: list[set[bytes]] = []
    # Most of what may go wrong does so only behind a first snapshot.
    for event in [(set[bytes](), set[bytes](), True), "take", *steps, "take"]:
        match event:
            case "discard":
                buffer.discard()
            case "await":
                buffer.await_snapshot()
            case "take":
                changes = buffer.take()
                past.append(reported)
                assert changes.resumed in (None, digest_of(reported))
                reported = set[bytes]() if changes.cleared else reported
                assert reported.issuperset(changes.removed)
                reported = (reported - {*changes.removed}) | {*changes.stored}
                assert (changes.digest is None) == buffer.awaits_snapshot
                if changes.digest is not None:
                    assert reported == cache
                    assert changes.digest == digest_of(reported)
            case int(num_missed):
                known = [*past, reported][-1 - num_missed :][0]
                if buffer.resume(digest_of(known)):
                    reported = known
            case (wanted, unwanted, with_snapshot):
                stored, removed = wanted - cache, unwanted & cache
                cache = (cache | stored) - removed
                snapshot = list(cache) if with_snapshot else None
                is_news = stored or removed or with_snapshot
                digest = digest_of(cache) if is_news else None
                buffer.add(
                    StepOutput(
                        stored_block_hashes=list(stored),
                        removed_block_hashes=list(removed),
                        cache_snapshot=snapshot,
                        cache_digest=digest,
                    )
                )
