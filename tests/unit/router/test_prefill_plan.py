"""Which way to a prompt's KV is chosen: crossovers, preferences, and the rule before anything is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagemesh.core.kv import KvLayout
from pagemesh.core.load import PrefillRate
from pagemesh.router.routing.candidate import Candidate, LinkUse
from pagemesh.router.routing.cost import Link
from pagemesh.router.routing.peers import Peers
from pagemesh.router.routing.prefill_plan import PrefillPlan, plan_prefill
from pagemesh.router.routing.ways import Path, Ways
from tests.unit.router.routing_builders import (
    LAYOUT,
    RATE,
    changed,
    make_candidate,
    make_prefill_worker,
    make_route_request,
)

# 1,000 bytes for a token.
WIDE = KvLayout.uniform(block_size=10, num_layers=5, num_kv_heads=5, head_dim=5, dtype="float32")
FAST, SLOW = Link(1e9, 0.001), Link(2e5, 0.001)


def decode_worker(**changes: Any) -> Candidate:
    fields: dict[str, Any] = {"layout": WIDE, "prefill_rate": RATE}
    return make_candidate("d", **{**fields, **changes})


def prefill_worker(worker_id: str = "p", **changes: Any) -> Candidate:
    fields: dict[str, Any] = {"layout": WIDE, "prefill_rate": RATE}
    return make_prefill_worker(worker_id, **{**fields, **changes})


def other_decode_worker(**changes: Any) -> Candidate:
    fields: dict[str, Any] = {"layout": WIDE, "prefill_rate": RATE}
    return make_candidate("e", **{**fields, **changes})


def planned(
    decode: Candidate,
    *others: Candidate,
    prompt: int = 1000,
    minimum: int | None = None,
    excluded: frozenset[str] = frozenset(),
) -> PrefillPlan:
    request = make_route_request(num_prompt_tokens=prompt, excluded_worker_ids=excluded)
    return plan_prefill(
        Ways(decode, Peers(decode.facts.kv_kind, [*others, decode], request)), minimum
    )


def ids(plan: PrefillPlan) -> list[str]:
    return [worker.worker_id for worker in plan.workers]


def test_a_layout_of_a_thousand_bytes_for_a_token() -> None:
    assert WIDE.num_bytes / WIDE.block_size == 1000


def test_over_a_fast_link_a_prompt_is_prefilled_remotely() -> None:
    plan = planned(decode_worker(links={"p": FAST}), prefill_worker())
    assert (plan.path, ids(plan), plan.source) == (Path.REMOTE, ["p"], None)
    # A second of compute, a millisecond of latency, and the last layer of the last chunk.
    assert plan.predicted_seconds == pytest.approx(1.001 + 512 * 200 / 1e9)
    assert plan.predictions == pytest.approx({Path.REMOTE: plan.predicted_seconds, Path.LOCAL: 1.0})


def test_over_a_slow_link_a_prompt_is_prefilled_locally() -> None:
    plan = planned(decode_worker(links={"p": SLOW}), prefill_worker())
    assert (plan.path, plan.workers, plan.overrule_seconds) == (Path.LOCAL, (), 0.0)
    assert plan.predictions == pytest.approx({Path.REMOTE: 5.001, Path.LOCAL: 1.0})


def test_a_long_queue_at_the_decode_worker_makes_a_slow_link_worth_it() -> None:
    links = {"p": SLOW}
    assert planned(decode_worker(links=links, num_pending_tokens=4500), prefill_worker()).path is (
        Path.REMOTE
    )
    assert planned(decode_worker(links=links, num_pending_tokens=3500), prefill_worker()).path is (
        Path.LOCAL
    )


def test_a_long_queue_at_the_prefill_worker_makes_a_prompt_local() -> None:
    plan = planned(decode_worker(links={"p": FAST}), prefill_worker(num_pending_tokens=200))
    assert plan.path is Path.LOCAL


def test_what_this_router_sent_counts_before_it_is_reported() -> None:
    decode = decode_worker(links={"p": FAST, "q": FAST})
    busy = prefill_worker("p", queue_seconds=0.2)
    plan = planned(decode, busy, prefill_worker("q"))
    assert ids(plan) == ["q", "p"]
    queued = decode_worker(links={"p": FAST}, transfers={"p": LinkUse(1, 3.0)})
    assert planned(queued, prefill_worker()).path is Path.LOCAL


def test_of_what_is_reported_and_what_was_sent_the_longer_queue_counts() -> None:
    decode = decode_worker(links={"p": FAST}, num_pending_tokens=3000, queue_seconds=1.0)
    assert planned(decode).predicted_seconds == pytest.approx(4.0)
    decode = decode_worker(links={"p": FAST}, num_pending_tokens=3000, queue_seconds=5.0)
    assert planned(decode).predicted_seconds == pytest.approx(6.0)


def test_a_long_prefix_elsewhere_is_pulled_over_a_fast_link() -> None:
    decode = decode_worker(links={"e": FAST})
    plan = planned(decode, other_decode_worker(num_held_blocks=90))
    assert (plan.path, plan.workers) == (Path.PULL, ())
    assert plan.source is not None
    assert (plan.source.worker_id, plan.source.num_held_blocks) == ("e", 90)
    # 900 tokens over the link, 100 computed.
    assert plan.predicted_seconds == pytest.approx(0.001 + 9e5 / 1e9 + 0.1)


def test_a_long_prefix_elsewhere_is_not_worth_a_slow_link() -> None:
    decode = decode_worker(links={"e": SLOW})
    assert planned(decode, other_decode_worker(num_held_blocks=90)).path is Path.LOCAL


def test_a_short_prefix_elsewhere_is_not_worth_a_pull() -> None:
    decode = decode_worker(links={"e": FAST._replace(latency_seconds=0.1)}, num_held_blocks=80)
    assert planned(decode, other_decode_worker(num_held_blocks=85)).path is Path.LOCAL
    assert planned(decode, other_decode_worker(num_held_blocks=95)).path is Path.PULL


def test_a_prefill_worker_pulls_where_it_computes_what_is_left_much_faster() -> None:
    # The rest is long enough to be computed elsewhere.
    slow_rate = RATE._replace(seconds_per_token=1e-2)
    decode = decode_worker(links={"p": FAST, "e": FAST}, prefill_rate=slow_rate)
    prefill = prefill_worker(links={"e": FAST})
    plan = planned(decode, prefill, other_decode_worker(num_held_blocks=50))
    assert (plan.path, ids(plan)) == (Path.REMOTE_PULL, ["p"])
    assert plan.source is not None
    assert plan.source.worker_id == "e"
    assert set(plan.predictions) == set(Path)


def test_a_prefill_worker_pulls_what_the_decode_worker_itself_holds() -> None:
    slow_rate = RATE._replace(seconds_per_token=1e-2)
    decode = decode_worker(links={"p": FAST}, prefill_rate=slow_rate, num_held_blocks=50)
    plan = planned(decode, prefill_worker(links={"d": FAST}))
    assert plan.path is Path.REMOTE_PULL
    assert plan.source is decode
    # 500 tokens fetched, 500 computed, and those sent back.
    assert plan.predicted_seconds == pytest.approx(0.001 + 5e5 / 1e9 + 0.5 + 1e5 / 1e9 + 0.001)


def test_a_prefill_workers_own_cache_counts() -> None:
    links = {"p": FAST, "q": FAST}
    plan = planned(
        decode_worker(links=links), prefill_worker("p"), prefill_worker("q", num_held_blocks=90)
    )
    assert (plan.path, ids(plan)) == (Path.REMOTE, ["q", "p"])


def test_a_plan_names_the_best_workers_first_and_no_more_than_three() -> None:
    workers = [prefill_worker(f"p{n}", num_pending_tokens=1000 * n) for n in (3, 1, 4, 2)]
    plan = planned(decode_worker(num_pending_tokens=10_000), *workers)
    assert ids(plan) == ["p1", "p2", "p3"]


def test_ways_that_take_about_as_long_spare_the_decode_worker() -> None:
    # 40 ms of a second are noise, 60 are not.
    for latency, path in ((0.04, Path.REMOTE), (0.06, Path.LOCAL)):
        decode = decode_worker(links={"p": Link(1e12, latency)})
        assert planned(decode, prefill_worker()).path is path
    # Of three milliseconds, one is noise.
    for latency, path in ((0.0009, Path.REMOTE), (0.0012, Path.LOCAL)):
        decode = decode_worker(links={"p": Link(1e12, latency)})
        assert planned(decode, prefill_worker(), prompt=3).path is path


@pytest.mark.parametrize(
    ("num_running", "queue", "path"),
    [
        (0, 0.3, Path.LOCAL),
        (8, 0.3, Path.REMOTE),
        (8, 0.6, Path.LOCAL),
        (16, 0.9, Path.REMOTE),
        (16, 1.2, Path.LOCAL),
        (64, 1.2, Path.LOCAL),
    ],
)
def test_running_decodes_make_a_local_prefill_dearer_at_most_twice(
    num_running: int, queue: float, path: Path
) -> None:
    decode = decode_worker(links={"p": FAST}, num_running=num_running)
    plan = planned(decode, prefill_worker(num_pending_tokens=round(queue * 1000)))
    assert plan.path is path


def test_a_plan_is_overruled_by_what_would_have_been_chosen_instead() -> None:
    prefill = prefill_worker()
    plan = planned(decode_worker(links={"p": Link(1e12, 0.0)}), prefill)
    assert plan.overrule_seconds == pytest.approx(1 / 1.05, rel=1e-3)
    plan = planned(decode_worker(links={"p": Link(1e12, 0.0)}, num_running=8), prefill)
    assert plan.overrule_seconds == pytest.approx(1 / 1.05 / 1.5, rel=1e-3)


def test_engines_that_compute_answer_in_the_middle_of_a_step() -> None:
    decode, holder = decode_worker(links={"e": FAST}), other_decode_worker(num_held_blocks=90)
    idle = planned(decode, holder).predictions[Path.PULL]
    # A step of 512 tokens, one of the last 100, and one of decodes alone.
    for busy, seconds in (
        ({"num_pending_tokens": 5000}, 0.256),
        ({"num_pending_tokens": 100}, 0.05),
        ({"queue_seconds": 0.3}, 0.15),
        ({"num_running": 4, "prefill_rate": RATE._replace(seconds_per_step=0.04)}, 0.02),
    ):
        waits = planned(decode, changed(holder, **busy)).predictions[Path.PULL]
        assert waits == pytest.approx(idle + seconds)
    # The decode worker's own engine grants blocks first.
    running = changed(decode, num_running=4, prefill_rate=RATE._replace(seconds_per_step=0.04))
    assert planned(running, holder).predictions[Path.PULL] == pytest.approx(idle + 0.02 + 0.04)


def test_whoever_did_not_measure_yet_is_taken_to_be_as_fast_as_the_fastest() -> None:
    unknown = PrefillRate()
    decode = decode_worker(links={"p": FAST})
    plan = planned(decode, prefill_worker(prefill_rate=unknown))
    assert plan.path is Path.REMOTE
    assert plan.predicted_seconds == pytest.approx(1.001, rel=0.01)
    plan = planned(changed(decode, prefill_rate=unknown), prefill_worker())
    assert plan.predictions[Path.LOCAL] == pytest.approx(1.0)


def test_a_link_that_was_never_measured_is_tried_by_two_requests_at_a_time() -> None:
    for num_requests, path in ((0, Path.REMOTE), (1, Path.REMOTE), (2, Path.LOCAL)):
        uses = {"p": LinkUse(num_requests, 0.0)} if num_requests else {}
        assert planned(decode_worker(transfers=uses), prefill_worker()).path is path
    uses = {"p": LinkUse(50, 0.0)}
    plan = planned(decode_worker(transfers=uses, links={"p": FAST}), prefill_worker())
    assert plan.path is Path.REMOTE


def test_an_unmeasured_link_is_thought_to_be_like_the_best_known_one_of_its_receiver() -> None:
    decode = decode_worker(links={"q": SLOW, "r": Link(1e5, 0.001)})
    plan = planned(decode, prefill_worker("p"))
    assert plan.predictions[Path.REMOTE] == pytest.approx(5.001)


def test_a_link_of_unknown_speed_is_thought_fast() -> None:
    plan = planned(decode_worker(links={"p": Link(0.0, 0.02)}), prefill_worker())
    assert plan.path is Path.REMOTE
    assert plan.predicted_seconds == pytest.approx(1.0201, rel=1e-4)


@pytest.mark.parametrize(
    ("prompt", "held", "path"),
    [(15, 0, Path.LOCAL), (16, 0, Path.REMOTE), (64, 3, Path.REMOTE), (64, 4, Path.LOCAL)],
)
def test_before_anything_is_measured_sixteen_uncached_tokens_make_a_prompt_remote(
    prompt: int, held: int, path: Path
) -> None:
    decode = make_candidate("d", num_held_blocks=held)
    plan = planned(decode, make_prefill_worker(), prompt=prompt)
    assert plan.path is path
    assert (plan.predicted_seconds, plan.overrule_seconds, plan.predictions) == (0, 0, {})


def test_before_anything_is_measured_the_least_loaded_are_named() -> None:
    workers = [make_prefill_worker(f"p{n}", num_requests=n) for n in (3, 1, 4, 2)]
    assert ids(planned(make_candidate("d"), *workers)) == ["p1", "p2", "p3"]


@pytest.mark.parametrize(
    ("prompt", "held", "workers"),
    [(99, 0, []), (100, 0, ["p"]), (159, 6, []), (160, 6, ["p"])],
)
@pytest.mark.parametrize("link", [FAST, SLOW], ids=["fast link", "slow link"])
def test_the_operators_threshold_wins_over_what_was_measured(
    prompt: int, held: int, workers: list[str], link: Link
) -> None:
    decode = decode_worker(links={"p": link}, num_held_blocks=held)
    plan = planned(decode, prefill_worker(), prompt=prompt, minimum=100)
    assert ids(plan) == workers
    assert plan.predicted_seconds > 0
    assert plan.overrule_seconds == 0


def test_of_several_prefill_workers_the_threshold_leaves_the_choice_to_the_prediction() -> None:
    decode = decode_worker(links={"p": SLOW, "q": FAST})
    plan = planned(decode, prefill_worker("p"), prefill_worker("q"), minimum=1)
    assert ids(plan) == ["q", "p"]


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {"model_fingerprint": "other"},
        {"layout": replace(LAYOUT, block_size=32)},
        {"layout": replace(LAYOUT, dtype="bfloat16")},
        {"reachable": False},
    ],
    ids=["model", "block_size", "dtype", "unreachable"],
)
def test_only_workers_whose_kv_fits_are_paired(changes: dict[str, Any], measured: bool) -> None:
    rate = RATE if measured else PrefillRate()
    decode = make_candidate("d", prefill_rate=rate)
    prefill = make_prefill_worker(prefill_rate=rate, **changes)
    holder = make_candidate("e", prefill_rate=rate, num_held_blocks=50, **changes)
    assert planned(decode, prefill, holder).path is Path.LOCAL


@pytest.mark.parametrize("measured", [True, False])
def test_a_prefill_worker_whose_context_is_too_short_for_a_prompt_is_passed_over(
    measured: bool,
) -> None:
    rate = RATE if measured else PrefillRate()
    decode = decode_worker(prefill_rate=rate, links={"p": FAST, "q": FAST})
    short, enough = (
        prefill_worker(name, prefill_rate=rate, max_model_len=length)
        for name, length in (("p", 1000), ("q", 1001))
    )
    assert planned(decode, short, prompt=1000).path is Path.LOCAL
    assert ids(planned(decode, short, enough, prompt=1000)) == ["q"]


def test_a_worker_that_was_lost_is_no_source() -> None:
    decode = decode_worker(links={"e": FAST})
    holder = other_decode_worker(num_held_blocks=90)
    assert planned(decode, holder, excluded=frozenset({"e"})).path is Path.LOCAL


def test_a_plan_says_what_it_keeps_busy() -> None:
    decode = decode_worker(links={"p": FAST, "e": FAST}, num_pending_tokens=10_000)
    prefill = prefill_worker(links={"e": Link(2e6, 0.001)})
    plan = planned(decode, prefill, other_decode_worker(num_held_blocks=90))
    assert plan.path is Path.REMOTE_PULL
    assert [(c.worker_id, c.sender_id) for c in plan.claims] == [
        ("p", None),
        ("d", "p"),
        ("p", "e"),
    ]
    seconds = [claim.seconds for claim in plan.claims]
    # Half a step until the decode worker's engine grants blocks.
    pulled = 0.256 + 0.451
    assert seconds == pytest.approx([pulled + 0.1, pulled + 0.1 + 2e4 / 1e9, pulled])


def test_a_prefill_worker_of_another_arithmetic_is_not_asked() -> None:
    decode = decode_worker(links={"p": FAST, "q": FAST}, arithmetic="cpu-fma-bfloat16")
    other = prefill_worker("p", arithmetic="cuda-sm90-triton3.6-bfloat16")
    assert planned(decode, other).path is Path.LOCAL
    alike = prefill_worker("q", arithmetic="cpu-fma-bfloat16")
    plan = planned(decode, other, alike)
    assert (plan.path, ids(plan)) == (Path.REMOTE, ["q"])
    # Also before anything was measured.
    plan = planned(
        changed(decode, prefill_rate=PrefillRate()), changed(other, prefill_rate=PrefillRate())
    )
    assert (plan.path, plan.workers) == (Path.LOCAL, ())


def test_nothing_is_pulled_from_another_arithmetic() -> None:
    decode = decode_worker(links={"e": FAST}, arithmetic="cpu-fma-bfloat16")
    assert planned(decode, other_decode_worker(num_held_blocks=90)).path is Path.LOCAL
    holder = other_decode_worker(num_held_blocks=90, arithmetic="cpu-fma-bfloat16")
    assert planned(decode, holder).path is Path.PULL
