"""The decision as a whole: where a request goes, why, and how much of its prompt was known where."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemesh.config import RoutingConfig
from pagemesh.core.load import PrefillRate
from pagemesh.router.routing.candidate import Naming, Role, WorkerFacts
from pagemesh.router.routing.decider import Decider
from pagemesh.router.routing.decision import Considered, Decision
from pagemesh.router.routing.ways import Path
from tests.fakes.clock import FakeClock
from tests.unit.router.routing_builders import NAMING, RATE, make_facts, make_route_request


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
        Considered(
            "a", 32, 32, 16, None, {"predicted_ttft": 0.5, "decode_load": 0.8, "session": 0.0}, 2.1
        ),
        Considered(
            "b", 0, 0, 0, None, {"predicted_ttft": 0.0, "decode_load": 1.0, "session": 0.0}, 2.0
        ),
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
    # Of 64 tokens, the last one is computed.
    decision = decided([make_facts("a")], {"a": 9})
    assert (decision.num_available_tokens, decision.num_captured_tokens) == (63, 63)


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
        flights.append(mesh.begin(decision.route, make_route_request()))
    assert went == ["a", "b", "a", "b"]
    flights[1].end()
    decision = mesh.decide(workers, {}, make_route_request())
    assert decision is not None
    assert decision.route.decode.worker_id == "b"


def names(text: str) -> dict[Naming, list[bytes]]:
    """Of blocks that bear one letter each: equal for equal beginnings."""
    return {NAMING: [text[: index + 1].encode().rjust(16) for index in range(len(text))]}


@pytest.mark.parametrize("rate", [PrefillRate(), RATE], ids=["unmeasured", "measured"])
def test_a_burst_of_equal_new_prompts_meets_before_the_index_knows(rate: PrefillRate) -> None:
    mesh = decider()
    workers = [make_facts(name, prefill_rate=rate) for name in "abcd"]
    went = set()
    for _ in range(4):
        request = make_route_request(block_names=names("wxyz"), is_prefillable=False)
        decision = mesh.decide(workers, {}, request)
        assert decision is not None
        went.add(decision.route.decode.worker_id)
        assert decision.num_available_tokens == 0
        mesh.begin(decision.route, request)
    assert len(went) == 1


def test_chats_are_at_home_where_their_own_kv_is_and_not_where_their_template_is() -> None:
    clock = FakeClock()
    mesh = Decider(RoutingConfig(), clock)
    faster = RATE._replace(seconds_per_token=RATE.seconds_per_token * 0.6)
    workers = [make_facts("holder", prefill_rate=RATE), make_facts("other", prefill_rate=faster)]

    def goes_to(text: str) -> str:
        request = make_route_request(block_names=names(text), is_prefillable=False)
        decision = mesh.decide(workers, {"holder": 2, "other": 1}, request)
        assert decision is not None
        mesh.begin(decision.route, request).end()
        clock.advance(2)
        return decision.route.decode.worker_id

    # Of 64 tokens: half of them at the one, at the other a quarter, and the rest in 0.9 of its time.
    assert goes_to("TTa0") == "holder"
    for number in range(20):
        goes_to(f"TTb{number:02}")
    assert goes_to("TTa0") == "other"


def test_what_is_coming_is_told_apart_from_what_is_held() -> None:
    mesh = decider()
    request = make_route_request(block_names=names("wxyz"))
    first = mesh.decide([make_facts("a")], {"a": 1}, request)
    assert first is not None
    mesh.begin(first.route, request)
    other = make_route_request(block_names=names("wxab"))
    second = mesh.decide([make_facts("a")], {"a": 1}, other)
    assert second is not None
    (considered,) = second.reasons.considered
    assert (considered.num_held_tokens, considered.num_coming_tokens) == (16, 32)


def test_nothing_is_coming_where_nothing_is_kept() -> None:
    mesh = decider()
    workers = [make_facts("a", caches_prefixes=False)]
    request = make_route_request(block_names=names("wxyz"))
    first = mesh.decide(workers, {}, request)
    assert first is not None
    mesh.begin(first.route, request)
    second = mesh.decide(workers, {}, request)
    assert second is not None
    (considered,) = second.reasons.considered
    assert considered.num_coming_tokens == 0


def test_what_a_prefill_worker_computes_is_coming_there() -> None:
    mesh = decider(remote_prefill_min_tokens=1)
    workers = [make_facts("d", prefill_rate=RATE)] + [
        make_facts(name, role=Role.PREFILL, prefill_rate=RATE) for name in "pq"
    ]
    request = make_route_request(block_names=names("wxyz"))
    went = []
    for _ in range(2):
        decision = mesh.decide(workers, {}, request)
        assert decision is not None
        assert decision.route.prefill is not None
        went.append(decision.route.prefill.worker_id)
        mesh.begin(decision.route, request)
    # Behind the first prompt in the queue, but with nothing left to compute.
    assert went in (["p", "p"], ["q", "q"])


def test_a_draining_worker_gets_nothing() -> None:
    workers = [make_facts("a"), make_facts("b", num_waiting=50)]
    decision = decider().decide(workers, {"a": 4}, make_route_request(), draining={"a"})
    assert decision is not None
    assert decision.route.decode.worker_id == "b"
    assert decision.reasons.refused == {"a": "draining"}


def test_answers_that_ended_tell_how_much_room_the_next_one_needs() -> None:
    mesh = decider(policy="least_loaded")
    # 4 blocks of prompt, and of an output of 512 tokens 16 blocks are expected, as long as none has ended.
    request = make_route_request(num_total_tokens=576)
    workers = [
        make_facts("roomy", num_blocks=100, num_free_blocks=20),
        make_facts("small", num_blocks=20, num_free_blocks=19),
    ]
    decision = mesh.decide(workers, {}, request)
    assert decision is not None
    assert decision.reasons.refused == {"small": "capacity"}
    for _ in range(200):
        mesh.answers.observe(32)
    decision = mesh.decide(workers, {}, request)
    assert decision is not None
    assert decision.reasons.refused == {}
    assert decision.route.decode.worker_id == "small"


MESHES: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(
        dict,
        role=st.sampled_from(Role),
        max_model_len=st.sampled_from([99, 100, 2048]),
        model_name=st.sampled_from(["demo", "demo", "other"]),
        num_running=st.integers(0, 100),
        num_blocks=st.sampled_from([0, 10, 100]),
        num_free_blocks=st.integers(0, 10),
        prefill_rate=st.sampled_from([RATE, PrefillRate()]),
    ),
    max_size=6,
)


@given(MESHES, st.data(), st.sampled_from(["kv_aware", "prefix_hash", "least_loaded"]))
def test_who_cannot_is_never_chosen_and_order_does_not_matter(
    mesh: list[dict[str, Any]], data: st.DataObject, policy: str
) -> None:
    workers = [make_facts(f"w{index}", **fields) for index, fields in enumerate(mesh)]
    ids = st.sets(st.sampled_from([w.worker_id for w in workers] or ["nobody"]))
    unreachable, draining, tried = data.draw(ids), data.draw(ids), data.draw(ids)
    held = data.draw(
        st.dictionaries(st.sampled_from([w.worker_id for w in workers] or ["x"]), st.integers(1, 4))
    )
    request = make_route_request(excluded_worker_ids=frozenset(tried), block_names=names("wxyz"))
    able = {
        w.worker_id
        for w in workers
        if w.role is Role.DECODE
        and w.model_name == "demo"
        and w.max_model_len >= 100
        and w.worker_id not in unreachable | draining | tried
    }
    decision = decider(policy=policy).decide(workers, held, request, unreachable, draining)
    if decision is None:
        assert not able
        return
    assert decision.route.decode.worker_id in able
    shuffled = data.draw(st.permutations(workers))
    again = decider(policy=policy).decide(shuffled, held, request, unreachable, draining)
    assert again == decision
