"""Routers that know the same choose the same, in whatever order they have heard of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemesh.config import RoutingConfig
from pagemesh.router.routing.candidate import Role, WorkerFacts
from pagemesh.router.routing.coming_blocks import LINGER
from pagemesh.router.routing.cost import Link
from pagemesh.router.routing.decider import Decider
from tests.fakes.clock import FakeClock
from tests.unit.router.routing_builders import RATE, make_facts, make_route_request

NAMES = [f"{role.value}-{index}" for role in Role for index in range(5)]
# Few values, so that many workers are equal.
LINKS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([Link(1e6, 0.001), Link(1e9, 0.0)]))


@st.composite
def facts(draw: st.DrawFn) -> list[WorkerFacts]:
    chosen = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    rates = [RATE, RATE._replace(seconds_per_token=2e-3), RATE._replace(num_tokens_per_step=64)]
    found = []
    for worker_id in chosen:
        changes: dict[str, Any] = {"prefill_rate": draw(st.sampled_from(rates))}
        changes["num_running"] = draw(st.integers(0, 2))
        changes["num_pending_tokens"] = draw(st.sampled_from([0, 500]))
        changes["block_naming"] = draw(st.sampled_from([b"n", b"n", b"other"]))
        role = Role(worker_id.partition("-")[0])
        found.append(make_facts(worker_id, role=role, links=draw(LINKS), **changes))
    return found


@pytest.mark.product(most=2)
@pytest.mark.parametrize("policy", ["kv_aware", "prefix_hash", "least_loaded"])
@pytest.mark.parametrize("min_tokens", [None, 32])
@given(data=st.data())
def test_the_order_in_which_workers_are_known_does_not_matter(
    policy: Any, min_tokens: int | None, data: st.DataObject
) -> None:
    workers = data.draw(facts())
    held = data.draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2)))
    request = make_route_request(data.draw(st.sampled_from([b"", b"1" * 16, b"2" * 16])))
    config = RoutingConfig(policy=policy, remote_prefill_min_tokens=min_tokens)
    first = Decider(config, FakeClock()).decide(workers, held, request)
    shuffled = data.draw(st.permutations(workers))
    turned = dict(reversed(held.items()))
    assert Decider(config, FakeClock()).decide(shuffled, turned, request) == first
    # Nor does what was decided before and is over for a while.
    clock = FakeClock()
    used = Decider(config, clock)
    if first is not None:
        used.begin(first.route, request).end()
        clock.advance(LINGER)
    assert used.decide(shuffled, turned, request) == first
