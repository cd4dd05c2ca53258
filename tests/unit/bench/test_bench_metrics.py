"""Figures of a few requests, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pagemesh.bench.load import Run
from pagemesh.bench.metrics import as_fields, count_tokens, measure
from pagemesh.bench.record import Record
from pagemesh.bench.report import RateResult, as_capacity, as_table
from pagemesh.workload.slo import Slo


def record(due: float, sent: float, pieces: list[float], tokens: int, **other: object) -> Record:
    made = Record(due=due, sent=sent, begin=due, piece_times=pieces, end=pieces[-1])
    made.num_prompt_tokens, made.num_output_tokens, made.is_finished = 10, tokens, True
    for name, value in other.items():
        setattr(made, name, value)
    return made


def example() -> Run:
    """Two answers of 3 and of 1 token, a failure, and one that was cut off."""
    return Run(
        [
            record(100.0, 100.0, [100.1, 100.3, 100.7], 3),
            record(100.5, 100.52, [101.5], 1),
            Record(due=101.0, sent=101.0, begin=101.0, end=101.2, error="HTTP 500: no"),
            Record(due=103.0, sent=103.0, begin=103.0, piece_times=[103.5]),
        ],
        begin=100.0,
        end=104.0,
        is_stopped=True,
    )


def test_cached_tokens_are_those_of_answers_whose_server_told_of_them() -> None:
    run = example()
    run.records[0].num_cached_tokens, run.records[2].num_cached_tokens = 6, 8
    metrics = measure(run, (50.0,), None, is_limited=False)
    assert metrics.total_cached_tokens == 6
    table = as_table(RateResult(1.0, metrics, False, ""), (), None)
    assert "Total cached input tokens:               6" in table.splitlines()


def test_counts_and_rates() -> None:
    metrics = measure(example(), (50.0,), None, is_limited=False)
    assert (metrics.completed, metrics.failed, metrics.unfinished) == (2, 1, 1)
    assert (metrics.total_input_tokens, metrics.total_output_tokens) == (20, 4)
    assert metrics.total_cached_tokens is None
    assert metrics.request_throughput == 0.5
    assert metrics.output_throughput == 1.0
    assert metrics.total_token_throughput == 6.0
    assert metrics.max_concurrent_requests == 2
    assert metrics.max_output_tokens_per_s == 3.0
    assert metrics.request_goodput is None
    assert metrics.max_send_delay_ms == pytest.approx(20.0)


def test_times_are_vllms() -> None:
    fields = as_fields(measure(example(), (50.0, 99.9), None, is_limited=False))
    assert fields["mean_ttft_ms"] == pytest.approx((100 + 1000) / 2)
    assert fields["median_ttft_ms"] == fields["p50_ttft_ms"] == pytest.approx(550)
    assert fields["p99.9_ttft_ms"] == pytest.approx(100 + 0.999 * 900)
    assert fields["std_ttft_ms"] == pytest.approx(450)
    # (700 - 100) / 2 of the first one; a single token has none.
    assert fields["mean_tpot_ms"] == pytest.approx(300)
    assert fields["mean_itl_ms"] == pytest.approx((200 + 400) / 2)
    assert fields["mean_e2el_ms"] == pytest.approx((700 + 1000) / 2)
    assert "mean_client_queue_time_ms" not in fields


@pytest.mark.parametrize(
    ("slo", "goodput"),
    [
        (Slo(ttft=0.5), 0.25),
        (Slo(tpot=0.29), 0.25),
        (Slo(e2el=0.6), 0.0),
        (Slo(ttft=1.1, tpot=0.31, e2el=1.1), 0.5),
    ],
)
def test_good_requests_keep_to_all_limits(slo: Slo, goodput: float) -> None:
    assert measure(example(), (), slo, is_limited=False).request_goodput == goodput


def test_with_a_limit_the_time_in_the_queue_is_told_apart() -> None:
    run = Run([record(10.0, 12.0, [13.0], 1, begin=12.0)], 10.0, 13.0, is_stopped=False)
    fields = as_fields(measure(run, (), None, is_limited=True))
    assert fields["mean_e2el_ms"] == pytest.approx(1000)
    assert fields["mean_client_queue_time_ms"] == pytest.approx(2000)
    assert fields["mean_e2el_including_client_queue_ms"] == pytest.approx(3000)


def test_nothing_at_all_is_zeros() -> None:
    run = Run([Record(due=1.0)], 1.0, 1.0, is_stopped=True)
    metrics = measure(run, (99.0,), Slo(), is_limited=False)
    assert (metrics.completed, metrics.unfinished, metrics.times["ttft"].mean) == (0, 1, 0.0)


def test_tokens_are_counted_where_the_server_does_not() -> None:
    said, unsaid = Record(0.0, num_prompt_tokens=5, num_output_tokens=6), Record(0.0, text="a b c")
    count_tokens([said, unsaid], [11, 12], lambda text: len(text.split()))
    assert (said.num_prompt_tokens, said.num_output_tokens) == (5, 6)
    assert (unsaid.num_prompt_tokens, unsaid.num_output_tokens) == (12, 3)


def at_rate(rate: float, num_good: int | None, completed: int = 100, failed: int = 0) -> RateResult:
    metrics = measure(example(), (50.0,), None, is_limited=False)
    found = replace(metrics, completed=completed, failed=failed, num_good=num_good)
    return RateResult(rate, found, False, "")


def test_the_highest_rate_that_keeps_to_the_limits_is_told_and_what_to_plan_for() -> None:
    # The one at 16 is good by chance: below it, one was not.
    rates = [at_rate(4.0, 100), at_rate(16.0, 100), at_rate(8.0, 98), at_rate(6.0, 99)]
    assert as_capacity(rates) == (
        "The highest rate that keeps to the limits: 6 requests/s, with 99.0% good ones.\n"
        "To plan for, with room for bursts and a lost worker: 3.9 requests/s, 65% of it."
    )
    assert "Higher ones may, too." in as_capacity([at_rate(4.0, 100), at_rate(math.inf, 0)])


def test_failures_are_not_good_requests() -> None:
    told = as_capacity([at_rate(4.0, 98, completed=98, failed=2)])
    assert told.startswith("No rate keeps to the limits: at 4 requests/s 98.0% are good")


def test_without_limits_or_with_an_interruption_no_rate_is_told() -> None:
    assert as_capacity([at_rate(4.0, None)]) == ""
    assert as_capacity([at_rate(4.0, 100), at_rate(8.0, 1)._replace(is_stopped=True)]) == ""
