"""Workers with room are preferred; where all are full, a request waits."""

from __future__ import annotations

import pytest

from pagemesh.router.routing.candidate import Candidate
from pagemesh.router.routing.filters import sift
from pagemesh.router.routing.scorers import load_score
from tests.unit.router.routing_builders import changed, make_candidate, make_route_request

# 64 tokens of prompt and 16 of output: 5 blocks.
REQUEST = make_route_request(num_growth_tokens=16)


def worker(worker_id: str, num_free_blocks: int, **changes: int) -> Candidate:
    return make_candidate(worker_id, num_blocks=100, num_free_blocks=num_free_blocks, **changes)


def fit(*candidates: Candidate) -> list[str]:
    return [candidate.worker_id for candidate in sift(candidates, REQUEST).fit]


def test_a_worker_without_room_is_left_out_while_another_has_some() -> None:
    sifted = sift([worker("full", 4), worker("free", 5)], REQUEST)
    assert [candidate.worker_id for candidate in sifted.fit] == ["free"]
    assert sifted.refused == {"full": "capacity"}


def test_where_all_are_full_nobody_is_left_out() -> None:
    sifted = sift([worker("a", 4), worker("b", 0)], REQUEST)
    assert [candidate.worker_id for candidate in sifted.fit] == ["a", "b"]
    assert sifted.refused == {}


def test_what_a_worker_holds_needs_no_room() -> None:
    holder = worker("holder", 2, num_held_blocks=3)
    assert fit(holder, worker("free", 50)) == ["holder", "free"]


def test_blocks_that_requests_on_their_way_will_take_are_not_free() -> None:
    assert fit(worker("a", 9, num_unreported_blocks=5), worker("b", 5)) == ["b"]


def test_blocks_that_waiting_requests_will_take_are_not_free() -> None:
    busy = worker("a", 20, num_waiting=1, num_pending_tokens=256)
    assert busy.num_spare_blocks == 4
    assert changed(busy, num_waiting=0).num_spare_blocks == 20
    assert fit(busy, worker("b", 5)) == ["b"]


def test_a_worker_that_does_not_say_how_large_its_cache_is_has_room() -> None:
    assert fit(make_candidate("a"), worker("b", 5)) == ["a", "b"]


@pytest.mark.parametrize(
    ("num_free_blocks", "score"), [(100, 1.0), (50, 1.0), (25, 2 / 3), (0, 0.5)]
)
def test_a_cache_that_is_full_is_as_much_of_a_limit_as_a_batch(
    num_free_blocks: int, score: float
) -> None:
    assert load_score(worker("a", num_free_blocks)) == score
    # The scarcer of the two counts.
    assert load_score(worker("a", num_free_blocks, num_running=64)) == 0.5
