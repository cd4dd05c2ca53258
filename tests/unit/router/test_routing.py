from __future__ import annotations

import re
from typing import Any

import pytest

from pagemesh.config import RoutingConfig
from pagemesh.errors import ConfigError
from pagemesh.router.routing.candidate import Candidate, Role, RouteRequest
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.picker import Scored, pick_by_prompt
from pagemesh.router.routing.policies import make_policy
from pagemesh.router.routing.policy import Policy
from pagemesh.router.routing.scorers import load_score, prefix_score
from tests.unit.router.routing_builders import changed, make_candidate, make_route_request

REQUEST = make_route_request()
POLICIES = ["kv_aware", "least_loaded", "round_robin"]


def policy_of(name: Any, **settings: Any) -> Policy:
    return make_policy(RoutingConfig(policy=name, **settings))


def chosen(policy: Policy, candidates: list[Candidate], request: RouteRequest = REQUEST) -> str:
    choice = policy.choose(candidates, Outlook(candidates, request))
    return choice.decode.worker_id if choice is not None else "nobody"


@pytest.mark.parametrize(("num_requests", "score"), [(0, 1.0), (16, 0.8), (64, 0.5), (192, 0.25)])
def test_load_is_counted_in_full_batches(num_requests: int, score: float) -> None:
    assert load_score(make_candidate(num_requests=num_requests)) == score


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
    assert chosen(policy_of(policy), [other, able]) == "b"
    assert chosen(policy_of(policy), [other]) == "nobody"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_worker_that_was_tried_is_left_out(policy: str) -> None:
    request = make_route_request(excluded_worker_ids=frozenset({"a"}))
    workers = [make_candidate("a"), make_candidate("b", num_requests=9)]
    assert chosen(policy_of(policy), workers, request) == "b"


@pytest.mark.parametrize("policy", POLICIES)
def test_without_workers_nobody_is_chosen(policy: str) -> None:
    assert chosen(policy_of(policy), []) == "nobody"


def test_the_context_fits_exactly() -> None:
    worker = make_candidate(max_model_len=100)
    assert chosen(policy_of("least_loaded"), [worker]) == "a"


def test_least_loaded_looks_at_load_relative_to_the_batch() -> None:
    small = make_candidate("a", num_requests=3, max_num_seqs=4)
    large = make_candidate("b", num_requests=8, max_num_seqs=64, num_held_blocks=0)
    assert chosen(policy_of("least_loaded"), [small, large]) == "b"


def test_kv_aware_prefers_the_worker_with_the_prefix() -> None:
    cold, warm = make_candidate("a"), make_candidate("b", num_held_blocks=4, num_requests=63)
    assert chosen(policy_of("kv_aware"), [cold, warm]) == "b"
    assert chosen(policy_of("least_loaded"), [cold, warm]) == "a"


def test_kv_aware_leaves_the_prefix_when_its_workers_batch_is_overfull() -> None:
    cold, warm = make_candidate("a"), make_candidate("b", num_held_blocks=4, num_requests=65)
    assert chosen(policy_of("kv_aware"), [cold, warm]) == "a"


def test_kv_aware_weighs_a_part_of_the_prefix_less() -> None:
    cold, warm = make_candidate("a"), make_candidate("b", num_held_blocks=1, num_requests=16)
    assert chosen(policy_of("kv_aware"), [cold, warm]) == "a"
    warm = changed(warm, num_held_blocks=2)
    assert chosen(policy_of("kv_aware"), [cold, warm]) == "b"


def test_only_kv_aware_asks_the_index() -> None:
    assert [policy_of(name).uses_index for name in POLICIES] == [True, False, False]


def test_round_robin_takes_turns_in_order_of_ids() -> None:
    policy = policy_of("round_robin")
    workers = [make_candidate("c"), make_candidate("a"), make_candidate("b")]
    assert [chosen(policy, workers) for _ in range(4)] == ["a", "b", "c", "a"]
    assert chosen(policy, [workers[0], workers[1]]) == "c"


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ConfigError, match="--policy is 'fastest'"):
        policy_of("fastest")


def test_equal_scores_go_to_the_smallest_id_without_a_full_block() -> None:
    scored = [Scored(make_candidate(name), 1.0) for name in "cab"]
    picked = pick_by_prompt(scored, REQUEST)
    assert picked.worker_id == "a"


def test_equal_scores_go_where_the_first_block_always_goes() -> None:
    workers = [make_candidate(name) for name in "abcd"]
    hashes = [bytes([index]) * 16 for index in range(64)]

    def winner(names: str, first: bytes) -> str:
        request = make_route_request(first_block=first)
        picked = pick_by_prompt([Scored(w, 1.0) for w in workers if w.worker_id in names], request)
        return picked.worker_id

    winners = [winner("abcd", first) for first in hashes]
    assert set(winners) == set("abcd")
    assert winners == [winner("dcba", first) for first in hashes]
    # Only what lay on the worker that left moves.
    for first, before in zip(hashes, winners, strict=True):
        assert before == "d" or winner("abc", first) == before


def test_a_difference_by_rounding_is_a_tie() -> None:
    scored = [Scored(make_candidate("a"), 0.3), Scored(make_candidate("b"), 0.1 + 0.2)]
    picked = pick_by_prompt(scored, REQUEST)
    assert picked.worker_id == "a"


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("fastest=1", "'fastest=1', but must be name=weight of one of predicted_ttft"),
        ("prefix_held", "'prefix_held', but must be prefix_held= and a number from 0 on"),
        ("decode_load=-1", "'decode_load=-1', but must be decode_load= and a number from 0 on"),
        ("decode_load=inf", "'decode_load=inf', but must be decode_load= and a number from 0 on"),
    ],
)
def test_a_wrong_weight_is_named(setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--scorer-weights is {complaint}")):
        RoutingConfig(scorer_weights=(setting,))


def test_not_all_weights_may_be_0() -> None:
    with pytest.raises(ConfigError, match=r"--scorer-weights is .*, but must be not all 0"):
        RoutingConfig(scorer_weights=("predicted_ttft=0", "decode_load=0", "session=0"))


def test_weights_decide_what_counts() -> None:
    cold, warm = make_candidate("a"), make_candidate("b", num_held_blocks=4, num_requests=65)
    assert chosen(policy_of("kv_aware"), [cold, warm]) == "a"
    assert chosen(policy_of("kv_aware", scorer_weights=("prefix_held=0.1",)), [cold, warm]) == "b"
    assert chosen(policy_of("kv_aware", scorer_weights=("decode_load=1",)), [cold, warm]) == "b"


AMX, FMA = "cpu-amx-bfloat16", "cpu-fma-bfloat16"


@pytest.mark.parametrize("policy", POLICIES)
def test_an_answer_goes_on_with_its_arithmetic_however_busy_that_is(policy: str) -> None:
    busy = make_candidate("b", arithmetic=AMX, num_requests=200, num_blocks=100, num_free_blocks=0)
    idle = make_candidate("a", arithmetic=FMA, num_held_blocks=4, num_blocks=100)
    idle = changed(idle, num_free_blocks=100)
    for arithmetic, expected in ((AMX, "b"), (FMA, "a")):
        request = make_route_request(arithmetic=arithmetic)
        assert chosen(policy_of(policy), [busy, idle], request) == expected


def test_the_reasons_name_the_arithmetic_of_those_that_were_passed_over() -> None:
    workers = [make_candidate("a", arithmetic=FMA), make_candidate("b", arithmetic=AMX)]
    request = make_route_request(arithmetic=AMX)
    choice = policy_of("kv_aware").choose(workers, Outlook(workers, request))
    assert choice is not None
    assert choice.reasons.refused == {"a": "arithmetic"}


@pytest.mark.parametrize("policy", POLICIES)
def test_where_nobody_has_its_arithmetic_an_answer_goes_on_all_the_same(policy: str) -> None:
    gone = make_candidate("a", arithmetic=AMX, reachable=False)
    tried = make_candidate("b", arithmetic=AMX)
    other = make_candidate("c", arithmetic=FMA, num_requests=9)
    request = make_route_request(arithmetic=AMX, excluded_worker_ids=frozenset({"b"}))
    assert chosen(policy_of(policy), [gone, tried, other], request) == "c"


def test_who_does_not_tell_its_arithmetic_is_of_another_class() -> None:
    workers = [make_candidate("a", arithmetic=AMX), make_candidate("b", num_requests=9)]
    assert chosen(policy_of("least_loaded"), workers, make_route_request(arithmetic="")) == "b"


def test_what_has_no_tokens_goes_anywhere() -> None:
    workers = [make_candidate("a", arithmetic=AMX, num_requests=9), make_candidate("b")]
    assert chosen(policy_of("least_loaded"), workers) == "b"
