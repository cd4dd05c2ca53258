"""What is printed: vLLM's table for each rate, and a line for each of several rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from pagemesh.bench.metric_names import METRICS, percentile_name
from pagemesh.bench.metrics import Metrics

_WIDTH: Final = 50

_GOOD_SHARE: Final = 0.99
"""Of the requests at a rate that keeps to the limits, as `pagemesh plan` has it."""

_PLANNED_SHARE: Final = 0.65
"""Of the highest rate: beyond, queues grow fast, and what goes wrong finds no room."""


class RateResult(NamedTuple):
    """One rate."""

    rate: float
    metrics: Metrics
    is_stopped: bool
    first_error: str
    """Empty when no request failed."""


def as_table(result: RateResult, shown: Sequence[str], max_concurrency: int | None) -> str:
    """The table of one rate, with these metrics."""
    metrics = result.metrics
    rows: list[tuple[str, int | float]] = [
        ("Successful requests:", metrics.completed),
        ("Failed requests:", metrics.failed),
    ]
    if result.is_stopped:
        rows.append(("Stopped before their end:", metrics.unfinished))
    if max_concurrency is not None:
        rows.append(("Maximum request concurrency:", max_concurrency))
    if result.rate != math.inf:
        rows.append(("Request rate configured (RPS):", float(result.rate)))
    rows += [
        ("Benchmark duration (s):", metrics.duration),
        ("Total input tokens:", metrics.total_input_tokens),
        *_cached_row(metrics),
        ("Total generated tokens:", metrics.total_output_tokens),
        ("Request throughput (req/s):", metrics.request_throughput),
    ]
    if metrics.request_goodput is not None:
        rows.append(("Request goodput (req/s):", metrics.request_goodput))
    rows += [
        ("Output token throughput (tok/s):", metrics.output_throughput),
        ("Peak output token throughput (tok/s):", metrics.max_output_tokens_per_s),
        ("Peak concurrent requests:", metrics.max_concurrent_requests),
        ("Total token throughput (tok/s):", metrics.total_token_throughput),
    ]
    if max_concurrency is None:
        rows.append(("Largest delay of sending (ms):", metrics.max_send_delay_ms))
    lines = [" Serving Benchmark Result ".center(_WIDTH, "="), *map(_row, rows)]
    for name in METRICS:
        if name in shown and name in metrics.times and metrics.completed:
            lines += _metric_lines(name, metrics)
    lines.append("=" * _WIDTH)
    if result.first_error:
        lines.append(f"First error: {result.first_error}")
    return "\n".join(lines)


def overview(results: Sequence[RateResult]) -> list[tuple[str, ...]]:
    """A row for each rate below a row of headings, with times in milliseconds: medians and the last percentile."""
    name = "p-"
    if last := results[0].metrics.times["ttft"].percentiles[-1:]:
        name = f"p{percentile_name(last[0][0])}"
    head = ("rate/s", "done/s", "good/s", "tokens/s", "TTFT", name, "TPOT", name, "E2EL", name)
    return [(*head, "failed"), *map(_overview_row, results)]


def as_overview(results: Sequence[RateResult]) -> str:
    """The same as lines."""
    lines = ["".join(cell.rjust(10) for cell in row) for row in overview(results)]
    return "\n".join([*lines, "TTFT, TPOT and E2EL in ms: median and percentile."])


def as_capacity(results: Sequence[RateResult]) -> str:
    """The highest rate that keeps to the limits of --goodput, as do all below it, and what to plan for.

    Empty without limits, and where all came at once. Requests that failed are not good ones.
    """
    measured = [r for r in results if r.rate != math.inf and r.metrics.num_good is not None]
    if not measured or any(result.is_stopped for result in results):
        return ""
    by_rate = sorted(measured, key=lambda result: result.rate)
    keeping = list(takewhile(lambda result: _good_share(result) >= _GOOD_SHARE, by_rate))
    if not keeping:
        first = by_rate[0]
        return (
            f"No rate keeps to the limits: at {first.rate:g} requests/s {_good_share(first):.1%} are good, of which"
            f" {_GOOD_SHARE:.0%} should be. Try lower ones."
        )
    highest = keeping[-1]
    rate, share = highest.rate, _good_share(highest)
    more = " Higher ones may, too." if len(keeping) == len(by_rate) else ""
    return (
        f"The highest rate that keeps to the limits: {rate:g} requests/s, with {share:.1%} good ones.{more}\n"
        f"To plan for, with room for bursts and a lost worker: {rate * _PLANNED_SHARE:.3g} requests/s,"
        f" {_PLANNED_SHARE:.0%} of it."
    )


def _good_share(result: RateResult) -> float:
    metrics = result.metrics
    return (metrics.num_good or 0) / max(1, metrics.completed + metrics.failed)


def _overview_row(result: RateResult) -> tuple[str, ...]:
    metrics = result.metrics
    times = []
    for name in ("ttft", "tpot", "e2el"):
        statistics = metrics.times[name]
        last = f"{statistics.percentiles[-1][1]:.1f}" if statistics.percentiles else "-"
        times += [f"{statistics.median:.1f}", last]
    return (
        f"{result.rate:g}",
        f"{metrics.request_throughput:.2f}",
        "-" if metrics.request_goodput is None else f"{metrics.request_goodput:.2f}",
        f"{metrics.output_throughput:.1f}",
        *times,
        str(metrics.failed),
    )


def _cached_row(metrics: Metrics) -> list[tuple[str, int | float]]:
    cached = metrics.total_cached_tokens
    return [] if cached is None else [("Total cached input tokens:", cached)]


def _metric_lines(name: str, metrics: Metrics) -> list[str]:
    metric, statistics = METRICS[name], metrics.times[name]
    percentiles = [
        _row((f"P{percentile_name(percentile)} {metric.short} (ms):", value))
        for percentile, value in statistics.percentiles
    ]
    return [
        metric.title.center(_WIDTH, "-"),
        _row((f"Mean {metric.short} (ms):", statistics.mean)),
        _row((f"Median {metric.short} (ms):", statistics.median)),
        *percentiles,
    ]


def _row(row: tuple[str, int | float]) -> str:
    name, value = row
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{name:<40} {text:<9}".rstrip()
