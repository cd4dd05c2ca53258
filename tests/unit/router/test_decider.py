"""The decision as a whole: where a request goes, why, and how much of its prompt was known where."""

from __future__ import annotations

from typing import Any

import pytest

from pagemesh.config import RoutingConfig
from pagemesh.router.routing.candidate import Role, WorkerFacts
from pagemesh.router.routing.decider import Decider
from pagemesh.router.routing.decision import Considered, Decision
from pagemesh.router.routing.ways import Path
from tests.fakes.clock import FakeClock
from tests.unit.router.routing_builders import RATE, make_facts, make_route_request


def decider(**settings: Any) -> Decider:
    return Decider(RoutingConfig(**settings), FakeClock())


def decided(workers: list[WorkerFacts], held: dict[str, int], **changes: Any) -> Decision:
    decision = decider().decide(workers, held, make_route_request(**changes))
    assert decision is not None
    return decision


def test_a_decision_gives_its_reasons() -> None:
    workers = [
        make_facts("a", num_waiting=16),
        make_facts("b"),
        make_facts("long", max_model_len=99),
        make_facts("other", model_name="other"),
        make_facts("p", role=Role.PREFILL),
    ]
    reasons = decided(workers, {"a": 2}).reasons
    assert (reasons.policy, reasons.num_fit) == ("kv_aware", 2)
    assert reasons.refused == {"long": "context", "other": "model"}
    assert reasons.considered == (
        Considered("a", 32, 16, None, {"predicted_ttft": 0.5, "decode_load": 0.8}, 2.1),
        Considered("b", 0, 0, None, {"predicted_ttft": 0.0, "decode_load": 1.0}, 2.0),
    )


def test_reasons_tell_what_was_predicted() -> None:
    workers = [make_facts(name, prefill_rate=RATE) for name in "ab"]
    reasons = decided(workers, {"b": 2}, is_prefillable=False).reasons
    assert [c.worker_id for c in reasons.considered] == ["b", "a"]
    assert [c.predicted_seconds for c in reasons.considered] == pytest.approx([0.032, 0.064])


def test_reasons_are_given_for_the_best_only() -> None:
    workers = [make_facts(f"w{number:02}", num_waiting=number) for number in range(20)]
    decision = decider(policy="least_loaded").decide(workers[::-1], {}, make_route_request())
    assert decision is not None
    reasons = decision.reasons
    assert [c.worker_id for c in reasons.considered] == [f"w{number:02}" for number in range(8)]
    assert reasons.num_fit == 20


def test_what_was_available_and_what_was_captured() -> None:
    workers = [make_facts("a"), make_facts("b", num_waiting=65)]
    decision = decided(workers, {"a": 1, "b": 3})
    assert decision.route.decode.worker_id == "a"
    assert (decision.num_available_tokens, decision.num_captured_tokens) == (48, 16)


def test_what_the_prefill_worker_holds_is_captured_too() -> None:
    workers = [make_facts("d"), make_facts("p", role=Role.PREFILL)]
    decision = decided(workers, {"p": 2})
    assert decision.route.plan is not None
    assert decision.route.plan.path is Path.REMOTE
    assert (decision.num_available_tokens, decision.num_captured_tokens) == (32, 32)
    local = decided(workers, {"p": 2}, is_prefillable=False)
    assert local.route.plan is None
    assert (local.num_available_tokens, local.num_captured_tokens) == (32, 0)


def test_no_more_is_available_than_a_cache_can_serve() -> None:
    # Of 64 tokens, the last one is computed, and with it its block.
    decision = decided([make_facts("a")], {"a": 9})
    assert (decision.num_available_tokens, decision.num_captured_tokens) == (48, 48)


def test_a_degraded_worker_gets_no_credit_for_what_it_seems_to_hold() -> None:
    workers = [make_facts("a", is_degraded=True), make_facts("b")]
    decision = decided(workers, {"a": 4, "b": 1})
    assert decision.route.decode.worker_id == "b"
    assert decision.num_available_tokens == 16


def test_nobody_is_decided_for_when_nobody_can() -> None:
    request = make_route_request()
    assert decider().decide([], {}, request) is None
    assert decider().decide([make_facts("a")], {}, request, unreachable={"a"}) is None


def test_what_was_decided_before_counts_at_once() -> None:
    mesh = decider(policy="least_loaded")
    workers = [make_facts("a"), make_facts("b")]
    went, flights = [], []
    for _ in range(4):
        decision = mesh.decide(workers, {}, make_route_request())
        assert decision is not None
        went.append(decision.route.decode.worker_id)
        flights.append(mesh.begin(decision.route))
    assert went == ["a", "b", "a", "b"]
    flights[1].end()
    decision = mesh.decide(workers, {}, make_route_request())
    assert decision is not None
    assert decision.route.decode.worker_id == "b"
