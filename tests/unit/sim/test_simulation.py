"""A simulated mesh: times that can be computed by hand, and what must hold whatever happens."""

from __future__ import annotations

from typing import Any, Final

import pytest

from pagemesh.router.routing.candidate import Role
from pagemesh.sim.model import PrefillModel
from pagemesh.sim.records import Outcome, Record
from pagemesh.sim.report import as_table
from pagemesh.sim.settings import PolicyName
from pagemesh.sim.simulation import Run, Simulation
from pagemesh.sim.summary import summarize
from pagemesh.sim.trace import Span
from pagemesh.workload.slo import Slo
from tests.unit.sim.sim_builders import make_model, make_request, mixed_trace, simulate


def test_one_request_takes_the_sum_of_its_parts() -> None:
    run = simulate([make_request(1.0, 100, 3, text=1)], num_decode=1).run()
    (record,) = run.records
    # Router 0.1, there 0.05, chunks of 64 and 36 tokens 0.074 + 0.046, back 0.05.
    assert record.ttft == pytest.approx(0.32)
    # Two steps of decodes.
    assert record.ended_at == pytest.approx(1.36)
    assert record.tpot == pytest.approx(0.02)
    assert (record.outcome, record.num_generated_tokens) == (Outcome.COMPLETED, 3)


def test_the_second_of_two_equal_prompts_computes_its_last_token_only() -> None:
    trace = [make_request(at, 100, 3, text=1) for at in (1.0, 5.0)]
    second = simulate(trace, num_decode=1).run().records[1]
    # All 10 blocks are cached, which leaves a step like a decode: 0.1 + 0.05 + 0.02 + 0.05.
    assert second.ttft == pytest.approx(0.22)
    assert second.num_delivered_tokens == second.num_shared_tokens == 99
    assert second.num_captured_tokens == second.num_available_tokens == 99


def test_a_later_turn_finds_what_was_generated_for_the_one_in_front_of_it() -> None:
    trace = [
        make_request(0.0, 100, 51, text=1),
        make_request(2.0, 200, 2, text=1, after=0),
    ]
    first, second = simulate(trace, num_decode=2).run().records
    assert second.arrived_at == pytest.approx(first.ended_at + 2.0)
    # The KV of the last of 151 tokens was never computed.
    assert second.num_delivered_tokens == 150
    assert second.decode_id == first.decode_id


def test_a_remote_prefill_takes_compute_and_what_is_left_of_the_transfer() -> None:
    trace = [make_request(0.0, 64, 2, text=1)]
    run = simulate(trace, num_decode=1, num_prefill=1, remote_prefill_min_tokens=16).run()
    (record,) = run.records
    # Call 0.25 behind router and network, computed in 0.074, the token goes 0.05 twice.
    assert record.ttft == pytest.approx(0.15 + 0.25 + 0.074 + 0.1)
    assert record.path.value == "remote"
    # The last of ten layers leaves when it is computed: 6,400 bytes in 6.4 ms, told of 0.05 later.
    assert record.ended_at == pytest.approx(0.15 + 0.25 + 0.074 + 0.0064 + 0.05 + 0.02 + 0.05)


NAMES: Final[tuple[PolicyName, ...]] = ("round_robin", "least_loaded", "kv_aware", "oracle")
CASES: dict[str, dict[str, Any]] = {
    "few-workers": {"num_decode": 2},
    "prefill-workers": {"num_decode": 2, "num_prefill": 2},
    "always-remote": {"num_decode": 2, "num_prefill": 2, "remote_prefill_min_tokens": 0},
    "many-routers": {"num_decode": 3, "num_routers": 3, "index_lag": 1.0, "report_delay": 1.0},
    "refusals": {"num_decode": 2, "max_waiting_requests": 5},
    "timeouts": {"num_decode": 2, "num_prefill": 1, "request_timeout": 2.0},
    "failures": {
        "num_decode": 3,
        "num_prefill": 2,
        "mean_seconds_between_failures": 3.0,
        "restart_seconds": 1.0,
    },
    "failures-on-shared-cores": {
        "model": make_model(cores=1.5),
        "num_decode": 4,
        "num_prefill": 2,
        "mean_seconds_between_failures": 3.0,
        "restart_seconds": 1.0,
    },
}


def test_trouble_is_what_the_cases_have() -> None:
    found = {
        case: {r.outcome for r in simulate(mixed_trace(3, 80, 12.0), **CASES[case]).run().records}
        for case in ("few-workers", "refusals", "timeouts", "failures")
    }
    assert found["few-workers"] == {Outcome.COMPLETED}
    assert Outcome.REJECTED in found["refusals"]
    assert Outcome.TIMED_OUT in found["timeouts"]
    assert Outcome.LOST in found["failures"]
    assert Outcome.ABANDONED in found["refusals"]


def test_good_requests_keep_both_limits_and_rates_are_over_the_whole_run() -> None:
    # To the first token 0.32 s and 0.294 s, then a step of 0.02 s for each.
    trace = [make_request(0.0, 100, 3, text=1), make_request(2.0, 74, 3, text=2)]
    run = simulate(trace, num_decode=1).run()
    good = {
        limits: summarize(run, "kv_aware", Slo(*limits)).good_share
        for limits in ((0.4, 0.03), (0.3, 0.03), (0.2, 0.03), (0.4, 0.01), (0.4, 0.03, 0.34))
    }
    assert good == {
        (0.4, 0.03): 1.0,
        (0.3, 0.03): 0.5,
        (0.2, 0.03): 0.0,
        (0.4, 0.01): 0.0,
        # To the last token 0.36 s and 0.334 s.
        (0.4, 0.03, 0.34): 0.5,
    }
    summary = summarize(run, "kv_aware", Slo(0.3, 0.03))
    assert run.seconds == pytest.approx(2.334)
    assert summary.throughput == pytest.approx(2 / 2.334)
    assert summary.goodput == pytest.approx(1 / 2.334)
    assert summary.token_throughput == pytest.approx(6 / 2.334)
    assert summary.outcomes == {"completed": 2}


def test_refused_and_unsent_requests_are_no_good_ones_however_quick_the_others_are() -> None:
    # One at a time: the second is refused, and so its next turn never comes.
    trace = [
        make_request(0.0, 100, 3, text=1),
        make_request(0.1, 74, 3, text=2),
        make_request(0.5, 150, 3, text=2, after=1),
        make_request(2.0, 74, 3, text=3),
    ]
    run = simulate(trace, num_decode=2, max_waiting_requests=1).run()
    summary = summarize(run, "kv_aware", Slo(1.0, 1.0))
    assert summary.outcomes == {"abandoned": 1, "completed": 2, "rejected": 1}
    assert summary.good_share == 0.5
    assert summary.goodput == summary.throughput == pytest.approx(2 / run.seconds)


def test_a_mesh_that_answers_nobody_is_not_a_quick_one() -> None:
    run = simulate([make_request(0.0, 100, 3, text=1)], num_decode=1, request_timeout=0.001).run()
    summary = summarize(run, "kv_aware", Slo())
    assert summary.outcomes == {"timed_out": 1}
    assert (summary.ttft_p50, summary.ttft_p99, summary.itl_p50) == (None, None, None)
    assert as_table([summary]).splitlines()[1].split()[5:10] == ["-", "-", "-", "-", "-"]


def test_a_long_conversation_whose_first_turn_is_refused_is_given_up_turn_by_turn() -> None:
    # More turns than calls may be deep, the first of which fits into no context.
    first = make_request(0.0, 1990, 50, text=1)
    later = [make_request(1.0, 1991 + n, 50, text=1, after=n) for n in range(2000)]
    records = simulate([first, *later], num_decode=1).run().records
    assert [r.outcome for r in records] == [Outcome.REJECTED, *[Outcome.ABANDONED] * 2000]


@pytest.mark.parametrize("policy", NAMES)
def test_what_is_known_of_a_prompt_is_counted_as_by_routers(policy: PolicyName) -> None:
    trace = [make_request(at, 64, 2, text=1) for at in (0.0, 5.0)]
    workers: dict[str, Any] = {"num_decode": 1, "num_prefill": 1, "remote_prefill_min_tokens": 0}
    model = make_model(block_size=16)
    second = simulate(trace, policy, model, **workers).run().records[1]
    assert second.num_captured_tokens == second.num_available_tokens == 63


def test_workers_that_share_a_core_take_turns() -> None:
    trace = [make_request(0.037 * n, 64, 1, text=n) for n in range(2)]

    def ttfts(cores: float | None) -> list[float | None]:
        model = make_model(cores=cores)
        return [r.ttft for r in simulate(trace, "round_robin", model, num_decode=2).run().records]

    # Both take 0.074 s of a core, and 0.2 s elsewhere. Each has it alone for a half of that, and shares it for twice
    # the other half.
    assert ttfts(1.0) == pytest.approx([0.311, 0.311])
    for cores in (2.0, None):
        assert ttfts(cores) == pytest.approx([0.274, 0.274])


def test_a_run_of_decodes_is_slowed_down_by_what_begins_and_ends_beside_it() -> None:
    trace = [make_request(0.0, 64, 11, text=1), make_request(0.1, 64, 1, text=2)]
    simulation = simulate(trace, "round_robin", make_model(cores=1.0), num_decode=2)
    first, second = simulation.run().records
    # Ten steps of 0.02 s from 0.224 s on; beside them the other's 0.074 s, from 0.25 s on.
    assert second.ttft == pytest.approx(0.2 + 2 * 0.074)
    assert first.ended_at == pytest.approx(0.2 + 0.074 + 10 * 0.02 + 0.074)
    # What a router is told of prompts is what they took: half of that step was shared.
    slow = simulation.workers["decode-1"].engine.load().prefill_rate
    assert slow.seconds_per_token == pytest.approx(2 * 0.001)
    quick = simulation.workers["decode-0"].engine.load().prefill_rate
    assert quick.seconds_per_token == pytest.approx(0.001)


def settled(simulation: Simulation) -> Simulation:
    """Let what is on its way when the last client goes come to its end."""
    until = simulation.clock.now + 5.0
    simulation.clock.run(lambda: simulation.clock.now > until)
    return simulation


@pytest.mark.product(sample=12)
@pytest.mark.parametrize("policy", NAMES[1:])
@pytest.mark.parametrize("case", CASES)
def test_every_request_ends_once_and_gives_everything_back(case: str, policy: PolicyName) -> None:
    simulation = simulate(mixed_trace(3, 80, 12.0), policy, **CASES[case])
    run = simulation.run()
    check_records(run)
    settled(simulation)
    for worker in simulation.workers.values():
        worker.engine.tables.pool.check_integrity([])
        assert worker.engine.num_jobs == 0
        assert not worker.users
    simulation.kvstore.index.check_integrity()


def check_records(run: Run) -> None:
    for record in run.records:
        assert record.outcome is not None
        assert record.ended_at >= record.arrived_at
        if record.outcome is Outcome.COMPLETED:
            assert record.num_generated_tokens == record.num_output_tokens
            assert record.first_token_at is not None
            assert record.arrived_at < record.first_token_at <= record.ended_at
        else:
            assert record.num_generated_tokens <= record.num_output_tokens
        assert record.num_captured_tokens <= record.num_available_tokens
        assert record.num_available_tokens < record.num_prompt_tokens
        assert record.num_delivered_tokens < record.num_prompt_tokens
    # Not of each: who waited longer may find what later ones have computed meanwhile.
    num_shared = sum(record.num_shared_tokens for record in run.records)
    assert sum(record.num_delivered_tokens for record in run.records) <= num_shared
    # A gap for each token behind the first one.
    completed = [r for r in run.records if r.outcome is Outcome.COMPLETED]
    assert run.token_times.num_gaps >= sum(r.num_generated_tokens - 1 for r in completed)


def test_without_trouble_tokens_add_up_to_the_last_one() -> None:
    trace = mixed_trace(4, 60, 6.0)
    run = simulate(trace, "round_robin", num_decode=3).run()
    assert {r.outcome for r in run.records} == {Outcome.COMPLETED}
    assert run.token_times.num_gaps == sum(r.num_output_tokens - 1 for r in trace)
    num_prompt = sum(r.num_prompt_tokens - r.num_delivered_tokens for r in run.records)
    # A prompt's last step gives the first token, and the last token is never computed.
    assert sum(w.num_computed_tokens for w in run.workers) == num_prompt + sum(
        r.num_output_tokens - 1 for r in trace
    )


def test_equal_seeds_give_equal_runs() -> None:
    def figures() -> list[object]:
        run = simulate(mixed_trace(5, 60, 10.0), **CASES["failures"]).run()
        return [run.num_events, *run.records]

    assert figures() == figures()


def test_caches_never_hold_more_than_they_can() -> None:
    simulation = simulate(mixed_trace(6, 80, 20.0), "round_robin", num_decode=2)
    most = 0
    for worker in simulation.workers.values():
        assert worker.engine.tables.pool.num_blocks == 400

    def watch() -> None:
        nonlocal most
        for worker in simulation.workers.values():
            most = max(most, len(worker.engine.tables.pool.cached_hashes()))
        simulation.clock.after(0.1, watch)

    watch()
    simulation.run()
    assert 300 < most <= 400


def test_who_goes_by_prefixes_computes_less_and_answers_sooner() -> None:
    trace = [
        make_request(0.4 * n, 600 + n % 7, 5, text=100 + n, prefix=Span(n * n % 13, 560))
        for n in range(120)
    ]
    runs = {name: simulate(trace, name, num_decode=4).run() for name in NAMES}
    hits = {name: sum(r.num_delivered_tokens for r in run.records) for name, run in runs.items()}
    waits = {name: sum(r.ttft or 0.0 for r in run.records) for name, run in runs.items()}
    assert hits["kv_aware"] > 1.2 * hits["round_robin"]
    assert hits["oracle"] >= hits["kv_aware"]
    assert waits["kv_aware"] < 0.8 * waits["round_robin"]


def test_several_routers_hear_of_each_others_requests_by_reports_only() -> None:
    # Both at once; a router alone knows of its own first request and takes the other worker.
    trace = [make_request(0.0, 100, 50, text=n) for n in range(2)]
    placed = {
        num_routers: {
            r.decode_id
            for r in simulate(trace, "least_loaded", num_decode=2, num_routers=num_routers)
            .run()
            .records
        }
        for num_routers in (1, 2)
    }
    assert len(placed[1]) == 2
    assert len(placed[2]) == 1


def test_a_stale_index_sends_equal_prompts_elsewhere_at_first() -> None:
    trace = [make_request(2.0 * n, 600, 2, text=1) for n in range(4)]
    records = simulate(trace, num_decode=1, index_lag=4.5).run().records
    assert [r.num_available_tokens for r in records] == [0, 0, 0, 599]
    assert [r.num_delivered_tokens for r in records] == [0, 599, 599, 599]


def test_a_worker_that_fails_loses_its_requests_and_its_cache() -> None:
    trace = [make_request(0.0, 600, 50, text=1), make_request(30.0, 600, 2, text=1)]
    simulation = simulate(trace, num_decode=2)
    first_id = "decode-0"

    def fail() -> None:
        (worker,) = (w for w in simulation.workers.values() if w.engine.num_jobs)
        worker.fail()
        simulation.clock.after(1.0, worker.restart)

    simulation.clock.at(0.4, fail)
    first, second = simulation.run().records
    # Nothing had been streamed: it began anew on the other worker.
    assert first.outcome is Outcome.COMPLETED
    assert first.ttft is not None
    assert first.ttft > 0.4 + 0.1
    assert second.decode_id == first.decode_id
    assert {first_id, "decode-1"} == set(simulation.workers)
    assert [w.epoch for w in simulation.workers.values()].count(2) == 1


def test_a_worker_tells_what_it_measured_and_takes_what_it_takes() -> None:
    slow = PrefillModel(seconds_per_token=0.5)
    model = make_model(measured={"decode-0": slow})
    simulation = simulate([make_request(1.0, 100, 3, text=1)], model=model, num_decode=1)
    (record,) = simulation.run().records
    assert record.ttft == pytest.approx(0.32)
    (worker,) = simulation.workers.values()
    assert worker.engine.load().prefill_rate.seconds_per_token == 0.5


def test_a_request_that_fits_into_no_cache_is_refused() -> None:
    trace = [make_request(0.0, 1990, 50, text=1), make_request(0.0, 100, 2, text=2)]
    records = simulate(trace, num_decode=1).run().records
    assert [r.outcome for r in records] == [Outcome.REJECTED, Outcome.COMPLETED]
    model = make_model()
    assert model.decode.max_model_len == 2000
    assert {w.role for w in simulate(trace).workers.values()} == {Role.DECODE}


def test_a_run_is_over_when_all_is_known_that_is_wanted() -> None:
    trace = [make_request(float(at), 100, 3, text=at) for at in range(1, 6)]
    ended: list[float] = []

    def is_decided(record: Record) -> bool:
        ended.append(record.arrived_at)
        return len(ended) == 2

    simulation = simulate(trace, num_decode=1, is_decided=is_decided)
    outcomes = [record.outcome for record in simulation.run().records]
    assert outcomes == [Outcome.COMPLETED, Outcome.COMPLETED, None, None, None]
    assert ended == [1.0, 2.0]
