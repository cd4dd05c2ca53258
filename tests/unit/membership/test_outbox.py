"""What of a cache's changes is reported."""

from __future__ import annotations

from pagemesh.engine.interface import StepOutput
from pagemesh.membership.outbox import CacheChanges, Outbox
from tests.unit.kvstore.builders import make_blocks


def make_outbox(*snapshot: int, max_changes: int = 10) -> Outbox:
    """An outbox that has reported a snapshot."""
    outbox = Outbox(max_changes)
    outbox.add(StepOutput(cache_snapshot=make_blocks(*snapshot)))
    outbox.take()
    return outbox


def step(*, stored: tuple[int, ...] = (), removed: tuple[int, ...] = ()) -> StepOutput:
    return StepOutput(
        stored_block_hashes=make_blocks(*stored), removed_block_hashes=make_blocks(*removed)
    )


FORGET_ALL = CacheChanges(cleared=True, removed=[], stored=[])


def test_nothing_counts_before_the_first_snapshot() -> None:
    outbox = Outbox(max_changes=10)
    outbox.add(step(stored=(1, 2)))
    assert outbox.awaits_snapshot
    assert outbox.take() == FORGET_ALL
    outbox.add(step(stored=(3,)))
    assert outbox.is_empty


def test_a_snapshot_is_everything_there_is() -> None:
    outbox = Outbox(max_changes=10)
    outbox.add(
        StepOutput(
            stored_block_hashes=make_blocks(3),
            removed_block_hashes=make_blocks(1),
            cache_snapshot=make_blocks(2, 3),
        )
    )
    assert not outbox.awaits_snapshot
    assert outbox.take() == CacheChanges(cleared=True, removed=[], stored=make_blocks(2, 3))


def test_an_empty_snapshot_is_reported_too() -> None:
    outbox = Outbox(max_changes=10)
    outbox.add(StepOutput(cache_snapshot=[]))
    assert not outbox.is_empty
    assert outbox.take() == FORGET_ALL
    assert outbox.is_empty


def test_changes_behind_an_unreported_snapshot_are_added_to_it() -> None:
    outbox = Outbox(max_changes=10)
    outbox.add(StepOutput(cache_snapshot=make_blocks(1, 2)))
    outbox.add(step(stored=(3,), removed=(1,)))
    assert outbox.take() == CacheChanges(
        cleared=True, removed=make_blocks(1), stored=make_blocks(2, 3)
    )


def test_only_the_last_change_of_a_block_is_reported() -> None:
    outbox = make_outbox()
    outbox.add(step(stored=(1, 2)))
    outbox.add(step(removed=(1,)))
    outbox.add(step(stored=(3,), removed=(2,)))
    outbox.add(step(stored=(2,)))
    changes = outbox.take()
    assert changes.removed == make_blocks(1)
    assert set(changes.stored) == set(make_blocks(2, 3))


def test_a_block_that_left_and_came_back_in_one_step_is_there() -> None:
    outbox = make_outbox(1)
    outbox.add(step(stored=(1,), removed=(1,)))
    assert outbox.take() == CacheChanges(cleared=False, removed=[], stored=make_blocks(1))


def test_what_was_taken_is_not_reported_again() -> None:
    outbox = make_outbox()
    outbox.add(step(stored=(1,)))
    outbox.take()
    assert outbox.take() == CacheChanges(cleared=False, removed=[], stored=[])


def test_too_many_changes_are_given_up_for_a_snapshot() -> None:
    outbox = make_outbox(max_changes=3)
    outbox.add(step(stored=(1, 2, 3)))
    assert not outbox.awaits_snapshot
    outbox.add(step(stored=(4,)))
    assert outbox.awaits_snapshot
    outbox.add(step(stored=(5,)))
    assert outbox.take() == FORGET_ALL


def test_discarding_waits_for_the_next_snapshot() -> None:
    outbox = make_outbox()
    outbox.add(step(stored=(1,)))
    outbox.discard()
    outbox.add(step(stored=(2,)))
    assert outbox.take() == FORGET_ALL
    outbox.add(StepOutput(cache_snapshot=make_blocks(1, 2, 3)))
    assert set(outbox.take().stored) == set(make_blocks(1, 2, 3))
