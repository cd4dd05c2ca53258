"""Rendezvous hashing with bounded loads."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pagemesh.config import RoutingConfig
from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.policies import make_policy
from tests.unit.router.routing_builders import changed, make_candidate, make_route_request


def chosen(candidates: list[Candidate], request: RouteRequest) -> str:
    choice = make_policy(RoutingConfig(policy="prefix_hash")).choose(
        candidates, Outlook(candidates, request)
    )
    assert choice is not None
    return choice.decode.worker_id


def group(number: int) -> RouteRequest:
    return make_route_request(first_block=number.to_bytes(16, "big"))


def test_equal_beginnings_meet_and_others_spread() -> None:
    workers = [make_candidate(name) for name in "abcd"]
    went = Counter(chosen(workers, group(number)) for number in range(400))
    assert went == {"a": 103, "b": 101, "c": 94, "d": 102}
    assert all(chosen(workers, group(n)) == chosen(workers[::-1], group(n)) for n in range(40))


def test_a_worker_with_more_than_its_part_is_passed_over() -> None:
    workers = [make_candidate(name, num_running=10) for name in "abcd"]
    first = chosen(workers, group(1))
    # 1.25 times the mean of 43 requests on four workers is 13.4, of 51 15.9.
    busy = [changed(w, num_running=12 if w.worker_id == first else 10) for w in workers]
    assert chosen(busy, group(1)) == first
    busier = [changed(w, num_running=20 if w.worker_id == first else 10) for w in workers]
    second = chosen(busier, group(1))
    assert second != first
    # Whoever is next in the prompt's own order, which others do not share.
    others = {chosen(busier, group(number)) for number in range(40)}
    assert others == {w.worker_id for w in workers} - {first}


def test_parts_are_as_large_as_the_batches() -> None:
    workers = [
        make_candidate("a", max_num_seqs=90, num_running=50),
        make_candidate("b", max_num_seqs=10),
    ]
    went = Counter(chosen(workers, group(number)) for number in range(100))
    assert went["a"] > 0
    crowded = [workers[0], changed(workers[1], num_running=8)]
    assert {chosen(crowded, group(number)) for number in range(100)} == {"a"}


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 64)), min_size=1, max_size=20))
def test_there_always_is_one_that_takes_it(sizes: list[tuple[int, int]]) -> None:
    workers = [
        make_candidate(f"w{index}", num_running=num_running, max_num_seqs=max_num_seqs)
        for index, (num_running, max_num_seqs) in enumerate(sizes)
    ]
    assert chosen(workers, group(1)) in {worker.worker_id for worker in workers}


def test_no_worker_gets_much_more_than_its_part_however_popular_a_prompt_is() -> None:
    draw = random.Random(3)
    counts = Counter(dict.fromkeys("abcdefgh", 0))
    for _ in range(400):
        workers = [make_candidate(name, num_running=counts[name]) for name in counts]
        number = 1 if draw.random() < 0.9 else draw.randrange(1000)
        counts[chosen(workers, group(number))] += 1
    assert max(counts.values()) == 63
