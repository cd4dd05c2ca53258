"""What the last minute was like."""

from __future__ import annotations

import math

import pytest

from pagemesh.router.console.window import (
    PERIOD_S,
    WINDOW_S,
    Buckets,
    Counters,
    Quantiles,
    Sample,
    Window,
    quantiles,
)
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import requests as of_requests
from pagemesh.telemetry.metrics import routing as of_routing

INF = math.inf


def buckets(*counts: float) -> Buckets:
    return tuple(zip((0.1, 0.2, 0.4, INF), counts, strict=True))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((), (), Quantiles(0, None, None)),
        ((), buckets(0, 0, 0, 0), Quantiles(0, None, None)),
        ((), buckets(0, 10, 10, 10), Quantiles(10, 0.15, 0.19)),
        # Only what came since counts.
        (buckets(90, 90, 90, 90), buckets(90, 90, 100, 100), Quantiles(10, 0.3, 0.38)),
        (buckets(5, 5, 5, 5), buckets(5, 5, 5, 5), Quantiles(0, None, None)),
        # Beyond the last bound nothing is known but that bound.
        ((), buckets(0, 0, 0, 4), Quantiles(4, 0.4, 0.4)),
    ],
)
def test_quantiles_are_those_of_what_came_since(
    before: Buckets, now: Buckets, expected: Quantiles
) -> None:
    found = quantiles(before, now)
    assert found == pytest.approx(expected)


class Mill:
    """A clock and a counter that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.total = 0.0
        self.num_taken = 0

    def take(self) -> Sample:
        self.num_taken += 1
        return Sample(self.now, (), (), {"output_tokens": self.total})


def grown(window: Window) -> float:
    before, now = window.look()
    return now.totals["output_tokens"] - before.totals["output_tokens"]


def test_the_window_is_the_last_minute() -> None:
    mill = Mill()
    window = Window(mill.take)
    for _ in range(200):
        mill.now += 1
        mill.total += 10
        window.note(mill.now)
    seconds = grown(window) / 10
    assert WINDOW_S <= seconds <= WINDOW_S + PERIOD_S


def test_a_young_router_counts_from_its_beginning() -> None:
    mill = Mill()
    window = Window(mill.take)
    mill.now, mill.total = 1007.0, 70.0
    assert grown(window) == 70.0


def test_what_came_after_a_long_silence_is_seen() -> None:
    mill = Mill()
    window = Window(mill.take)
    mill.now, mill.total = 1010.0, 500.0
    window.note(mill.now)
    mill.now, mill.total = 9000.0, 507.0
    window.note(mill.now)
    assert grown(window) == 7.0
    mill.now = 9061.0
    assert grown(window) == 0.0


def test_many_requests_cost_few_samples() -> None:
    mill = Mill()
    window = Window(mill.take)
    before = mill.num_taken
    for _ in range(1280):
        mill.now += 1 / 128
        window.note(mill.now)
    assert mill.num_taken - before == 10 / PERIOD_S


def test_counters_are_summed_over_labels_and_parted_by_what_the_index_said() -> None:
    metrics = Metrics()
    counters = Counters(metrics, lambda: 5.0)
    queried = metrics.counter(of_routing.PREFIX_TOKENS_QUERIED)
    delivered = metrics.counter(of_routing.PREFIX_TOKENS_DELIVERED)
    queried.labels("a", "local", "answered").inc(100)
    queried.labels("b", "remote", "answered").inc(10)
    queried.labels("a", "local", "skipped").inc(7)
    queried.labels("a", "local", "failed").inc(3)
    delivered.labels("a", "local", "answered").inc(64)
    delivered.labels("a", "local", "skipped").inc(4)
    metrics.counter(of_routing.PREFIX_TOKENS_AVAILABLE).labels("a", "local").inc(80)
    metrics.counter(of_routing.PREFIX_TOKENS_CAPTURED).labels("a", "local").inc(72)
    metrics.counter(of_requests.GENERATION_TOKENS).labels("a", "0").inc(12)
    for seconds in (0.03, 0.07):
        metrics.histogram(of_requests.TIME_TO_FIRST_TOKEN).labels("a", "0").observe(seconds)
        metrics.histogram(of_requests.TIME_TO_FIRST_TOKEN).labels("b", "0").observe(seconds)
    sample = counters.take()
    assert sample.at == 5.0
    assert sample.totals == {
        "prompt_tokens": 0, "output_tokens": 12, "queried": 110, "available": 80, "captured": 72,
        "delivered": 64, "unasked": 10, "unasked_delivered": 4,
    }  # fmt: skip
    assert dict(sample.time_to_first_token)[0.04] == 2
    assert sample.time_to_first_token[-1] == (INF, 4)
