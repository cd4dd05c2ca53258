"""Which decode worker gets a prompt when it is known how long each way to its KV takes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pagemesh.config import RoutingConfig
from pagemesh.core.kv import KvLayout
from pagemesh.router.routing.candidate import Candidate, RouteRequest
from pagemesh.router.routing.cost import Link
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.policies import make_policy
from pagemesh.router.routing.scorers import _scores_of
from tests.unit.router.routing_builders import RATE, make_candidate, make_route_request

# 1,000 bytes for a token: a second's tokens are a megabyte.
WIDE = KvLayout.uniform(block_size=10, num_layers=5, num_kv_heads=5, head_dim=5, dtype="float32")
FAST, SLOW = Link(1e9, 0.001), Link(1e5, 0.001)
HELD = 75
"""Of a prompt's 100 blocks."""


def worker(worker_id: str, **changes: Any) -> Candidate:
    return make_candidate(worker_id, **{"layout": WIDE, "prefill_rate": RATE, **changes})


def chosen(*candidates: Candidate, min_tokens: int | None = None, **changes: Any) -> str:
    request: RouteRequest = make_route_request(
        num_prompt_tokens=1000, num_total_tokens=1001, **changes
    )
    policy = make_policy(RoutingConfig(policy="kv_aware"))
    choice = policy.choose(candidates, Outlook(candidates, request, min_tokens))
    assert choice is not None
    return choice.decode.worker_id


def test_a_busy_holder_loses_to_whoever_can_pull() -> None:
    holder = worker("holder", num_held_blocks=HELD, num_pending_tokens=4000, num_requests=1)
    assert chosen(holder, worker("other", links={"holder": FAST})) == "other"


def test_a_busy_holder_keeps_a_prompt_whose_kv_would_come_more_slowly() -> None:
    holder = worker("holder", num_held_blocks=HELD, num_pending_tokens=200, num_requests=1)
    assert chosen(holder, worker("other", links={"holder": SLOW})) == "holder"


def test_an_idle_holder_keeps_its_prompt() -> None:
    holder = worker("holder", num_held_blocks=HELD)
    assert chosen(holder, worker("other", links={"holder": FAST})) == "holder"


def test_a_holder_with_a_short_queue_keeps_a_prompt_whose_copy_would_push_others_out() -> None:
    # A twentieth of a second's queue, and three quarters of a second's KV that would be stored twice.
    holder = worker("holder", num_held_blocks=HELD, num_pending_tokens=50, num_requests=1)
    assert chosen(holder, worker("other", links={"holder": FAST})) == "holder"


def test_a_holder_whose_batch_is_full_loses_even_when_it_would_be_first() -> None:
    holder = worker("holder", num_held_blocks=HELD, num_requests=64)
    assert chosen(holder, worker("other", links={"holder": FAST})) == "other"


def test_what_may_not_come_from_elsewhere_goes_where_it_is_computed_first() -> None:
    holder = worker("holder", num_held_blocks=HELD, num_pending_tokens=400, num_requests=1)
    other = worker("other", links={"holder": FAST})
    assert chosen(holder, other) == "other"
    assert chosen(holder, other, is_prefillable=False) == "holder"


@pytest.mark.parametrize("faster", ["a", "b"])
def test_between_workers_that_are_about_equally_fast_load_decides(faster: str) -> None:
    slightly = RATE._replace(seconds_per_token=RATE.seconds_per_token * 0.97)
    rates = {faster: slightly}
    a = worker("a", num_requests=1, prefill_rate=rates.get("a", RATE))
    b = worker("b", prefill_rate=rates.get("b", RATE))
    assert chosen(a, b) == "b"


def test_as_long_as_nothing_was_measured_the_prefix_counts() -> None:
    holder = make_candidate("holder", layout=WIDE, num_held_blocks=HELD, num_pending_tokens=4000)
    assert chosen(holder, make_candidate("other", layout=WIDE)) == "holder"


def test_a_new_prompt_goes_where_it_went_before_anything_was_measured() -> None:
    ids = ["a", "b", "c", "d", "e", "f", "g"]
    for number in range(16):
        names = {worker("a").facts.naming: [number.to_bytes(16, "big")]}
        unmeasured = [make_candidate(name, layout=WIDE) for name in ids]
        measured = [worker(name) for name in ids]
        assert chosen(*measured, block_names=names) == chosen(*unmeasured, block_names=names)


def test_a_holder_is_compared_with_idle_workers_however_many_there_are() -> None:
    idle = [worker(f"idle-{number}", links={"holder": SLOW}) for number in range(8)]
    holder = worker("holder", num_held_blocks=HELD, num_requests=1)
    assert chosen(*idle, holder) == "holder"
    busy = worker("holder", num_held_blocks=HELD, num_requests=1, num_pending_tokens=4000)
    assert chosen(*idle, busy).startswith("idle-")


def test_a_way_that_the_operator_does_not_want_speaks_for_nobody() -> None:
    holder = worker("holder", num_held_blocks=HELD, num_pending_tokens=200, num_requests=1)
    other = worker("other", links={"holder": FAST})
    assert chosen(holder, other) == "other"
    assert chosen(holder, other, min_tokens=16) == "holder"


def sooner(factor: float, **changes: Any) -> Candidate:
    """Idle, may pull from the holder in no time, and computes in this part of its time."""
    rate = RATE._replace(seconds_per_token=RATE.seconds_per_token * factor)
    return worker("a", **{"links": {"holder": FAST}, "prefill_rate": rate, **changes})


def test_who_would_be_a_little_sooner_does_not_get_a_prompt_away_from_home() -> None:
    # 0.25 seconds at home. Elsewhere that part of it, and of a second an eighth for what is stored.
    holder = worker("holder", num_held_blocks=HELD)
    assert chosen(holder, sooner(0.5)) == "holder"
    assert chosen(holder, sooner(0.2)) == "a"


def test_nobody_is_at_home_behind_a_queue() -> None:
    holder = worker("holder", num_held_blocks=HELD, num_pending_tokens=100)
    assert chosen(holder, sooner(0.5)) == "a"


def test_from_a_busier_home_a_prompt_goes_wherever_it_is_sooner() -> None:
    other = sooner(0.5, num_requests=1)
    assert chosen(worker("holder", num_held_blocks=HELD, num_requests=1), other) == "holder"
    assert chosen(worker("holder", num_held_blocks=HELD, num_requests=2), other) == "a"
    equal = worker("a", links={"holder": FAST}, num_requests=1)
    assert chosen(worker("holder", num_held_blocks=HELD, num_requests=2), equal) == "holder"


def test_nobody_is_at_home_in_a_full_batch() -> None:
    loads = {"num_requests": 64, "num_waiting": 64}
    other = sooner(0.5, **loads)
    assert chosen(worker("holder", num_held_blocks=HELD, **loads), other) == "a"
    loads = {"num_requests": 63, "num_waiting": 63}
    other = sooner(0.5, **loads)
    assert chosen(worker("holder", num_held_blocks=HELD, **loads), other) == "holder"


def test_what_a_crowd_shares_is_nobodys_home() -> None:
    holder = worker("holder", num_held_blocks=HELD)
    assert chosen(holder, sooner(0.5), num_crowd_blocks=HELD - 1) == "holder"
    assert chosen(holder, sooner(0.5), num_crowd_blocks=HELD) == "a"


def test_who_holds_as_much_is_at_home_too() -> None:
    holder, other = worker("holder", num_held_blocks=HELD), sooner(0.5, num_held_blocks=HELD)
    assert chosen(holder, other) == "a"


@pytest.mark.parametrize("first_block", [number.to_bytes(16, "big") for number in range(8)])
def test_a_prompt_stays_at_home_where_nothing_differs_by_a_millisecond(first_block: bytes) -> None:
    names = {worker("a").facts.naming: first_block}
    rate = RATE._replace(seconds_per_token=1e-7)
    holder = worker("a", num_held_blocks=HELD, prefill_rate=rate)
    others = [worker(name, prefill_rate=rate, links={"a": FAST}) for name in "bc"]
    assert chosen(holder, *others, affinity=names) == "a"


@pytest.mark.parametrize(
    "costs",
    [
        [0.0, 0.0],
        [0.0, 1.0],
        [0.0, math.inf],
        [math.inf, math.inf],
        [1.0, math.nan],
        [math.nan, 1.0],
    ],
)
def test_whatever_is_predicted_there_are_scores(costs: list[float]) -> None:
    scores = _scores_of(costs)
    assert all(0 <= score <= 1 for score in scores)
    best = min(cost for cost in costs if not math.isnan(cost))
    assert scores[costs.index(best)] == 1
