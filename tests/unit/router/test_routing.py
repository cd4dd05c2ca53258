from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagemesh.errors import ConfigError
from pagemesh.router.routing.candidate import Candidate, Role, RouteRequest
from pagemesh.router.routing.load_scorer import load_score
from pagemesh.router.routing.picker import Scored, pick
from pagemesh.router.routing.policies import Policy, make_policy
from pagemesh.router.routing.prefix_scorer import prefix_score
from tests.unit.router.routing_builders import make_candidate, make_route_request

REQUEST = make_route_request()
POLICIES = ["kv_aware", "least_loaded", "round_robin"]


def chosen(policy: Policy, candidates: list[Candidate], request: RouteRequest = REQUEST) -> str:
    candidate = policy.choose(candidates, request)
    return candidate.worker_id if candidate is not None else "nobody"


@pytest.mark.parametrize(("num_requests", "score"), [(0, 1.0), (16, 0.8), (64, 0.5), (192, 0.25)])
def test_load_is_counted_in_full_batches(num_requests: int, score: float) -> None:
    assert load_score(make_candidate(num_requests=num_requests), REQUEST) == score


@pytest.mark.parametrize(("num_held_blocks", "score"), [(0, 0.0), (1, 0.25), (4, 1.0), (9, 1.0)])
def test_a_prefix_counts_by_its_share_of_the_prompt(num_held_blocks: int, score: float) -> None:
    assert prefix_score(make_candidate(num_held_blocks=num_held_blocks), REQUEST) == score


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "unfit",
    [
        {"role": Role.PREFILL},
        {"model_name": "other"},
        {"reachable": False},
        {"max_model_len": 99},
    ],
    ids=["role", "model", "unreachable", "context"],
)
def test_workers_that_cannot_run_a_request_are_left_out(policy: str, unfit: dict[str, Any]) -> None:
    able, other = make_candidate("b", num_requests=50), make_candidate("a", **unfit)
    assert chosen(make_policy(policy), [other, able]) == "b"
    assert chosen(make_policy(policy), [other]) == "nobody"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_worker_that_was_tried_is_left_out(policy: str) -> None:
    request = make_route_request(excluded_worker_ids=frozenset({"a"}))
    workers = [make_candidate("a"), make_candidate("b", num_requests=9)]
    assert chosen(make_policy(policy), workers, request) == "b"


@pytest.mark.parametrize("policy", POLICIES)
def test_without_workers_nobody_is_chosen(policy: str) -> None:
    assert chosen(make_policy(policy), []) == "nobody"


def test_the_context_fits_exactly() -> None:
    worker = make_candidate(max_model_len=100)
    assert chosen(make_policy("least_loaded"), [worker]) == "a"


def test_least_loaded_looks_at_load_relative_to_the_batch() -> None:
    small = make_candidate("a", num_requests=3, max_num_seqs=4)
    large = make_candidate("b", num_requests=8, max_num_seqs=64, num_held_blocks=0)
    assert chosen(make_policy("least_loaded"), [small, large]) == "b"


def test_kv_aware_prefers_the_worker_with_the_prefix() -> None:
    cold, warm = make_candidate("a"), make_candidate("b", num_held_blocks=4, num_requests=63)
    assert chosen(make_policy("kv_aware"), [cold, warm]) == "b"
    assert chosen(make_policy("least_loaded"), [cold, warm]) == "a"


def test_kv_aware_leaves_the_prefix_when_its_workers_batch_is_overfull() -> None:
    cold, warm = make_candidate("a"), make_candidate("b", num_held_blocks=4, num_requests=65)
    assert chosen(make_policy("kv_aware"), [cold, warm]) == "a"


def test_kv_aware_weighs_a_part_of_the_prefix_less() -> None:
    cold, warm = make_candidate("a"), make_candidate("b", num_held_blocks=1, num_requests=16)
    assert chosen(make_policy("kv_aware"), [cold, warm]) == "a"
    warm = replace(warm, num_held_blocks=2)
    assert chosen(make_policy("kv_aware"), [cold, warm]) == "b"


def test_only_kv_aware_asks_the_index() -> None:
    assert [make_policy(name).uses_index for name in POLICIES] == [True, False, False]


def test_round_robin_takes_turns_in_order_of_ids() -> None:
    policy = make_policy("round_robin")
    workers = [make_candidate("c"), make_candidate("a"), make_candidate("b")]
    assert [chosen(policy, workers) for _ in range(4)] == ["a", "b", "c", "a"]
    assert chosen(policy, [workers[0], workers[1]]) == "c"


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ConfigError, match="--policy is 'fastest'"):
        make_policy("fastest")


def test_equal_scores_go_to_the_smallest_id_without_a_full_block() -> None:
    scored = [Scored(make_candidate(name), 1.0) for name in "cab"]
    picked = pick(scored, REQUEST)
    assert picked is not None
    assert picked.worker_id == "a"


def test_equal_scores_go_where_the_first_block_always_goes() -> None:
    workers = [make_candidate(name) for name in "abcd"]
    hashes = [bytes([index]) * 16 for index in range(64)]

    def winner(names: str, first: bytes) -> str:
        request = make_route_request(first_block_hash=first)
        picked = pick([Scored(w, 1.0) for w in workers if w.worker_id in names], request)
        assert picked is not None
        return picked.worker_id

    winners = [winner("abcd", first) for first in hashes]
    assert set(winners) == set("abcd")
    assert winners == [winner("dcba", first) for first in hashes]
    # Only what lay on the worker that left moves.
    for first, before in zip(hashes, winners, strict=True):
        assert before == "d" or winner("abc", first) == before


def test_a_difference_by_rounding_is_a_tie() -> None:
    scored = [Scored(make_candidate("a"), 0.3), Scored(make_candidate("b"), 0.1 + 0.2)]
    picked = pick(scored, REQUEST)
    assert picked is not None
    assert picked.worker_id == "a"
