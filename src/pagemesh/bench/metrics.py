"""What a run amounts to: vLLM's figures under vLLM's names. Plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagemesh.bench.load import Run
from pagemesh.bench.metric_names import METRICS, percentile_name
from pagemesh.bench.record import Record
from pagemesh.workload.slo import Slo


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one metric, in milliseconds; zeros of none."""

    mean: float
    median: float
    std: float
    percentiles: tuple[tuple[float, float], ...]
    """(percentile, value)."""

    @classmethod
    def of(cls, seconds: Sequence[float], percentiles: Sequence[float]) -> Statistics:
        """Percentiles lie between two values where they must, as numpy has them."""
        values = 1000 * np.array(seconds or [0.0])
        found = np.percentile(values, list(percentiles)) if percentiles else []
        pairs = zip(percentiles, map(float, found), strict=True)
        return cls(
            float(values.mean()), float(np.median(values)), float(values.std()), tuple(pairs)
        )


@dataclass(frozen=True, slots=True)
class Metrics:
    """One rate."""

    duration: float
    """Seconds from the first request's time to the last one's end."""
    completed: int
    failed: int
    unfinished: int
    """Cut off, or not even sent, because the run was stopped."""
    total_input_tokens: int
    total_output_tokens: int
    """Of completed requests."""
    total_cached_tokens: int | None
    """Of these prompts, those that came out of a cache; None where the server said nothing of it."""
    num_good: int | None
    """Completed requests that kept to all limits; None without limits."""
    max_output_tokens_per_s: float
    """Of completed requests, in the best second."""
    max_concurrent_requests: int
    """Most that were under way at a time."""
    max_send_delay_ms: float
    """By which the client was late at most: what it lacks in speed, or at an infinite rate what it takes for all."""
    times: dict[str, Statistics]
    """By the names of metrics."""

    @property
    def request_throughput(self) -> float:
        """Completed requests per second."""
        return self.completed / self.duration

    @property
    def request_goodput(self) -> float | None:
        """Good requests per second."""
        return None if self.num_good is None else self.num_good / self.duration

    @property
    def output_throughput(self) -> float:
        """Tokens of answers per second."""
        return self.total_output_tokens / self.duration

    @property
    def total_token_throughput(self) -> float:
        """Tokens of prompts and answers per second."""
        return (self.total_input_tokens + self.total_output_tokens) / self.duration


def count_tokens(
    records: Sequence[Record], prompt_lens: Sequence[int], count: Callable[[str], int]
) -> None:
    """Give those records a number of tokens to which the server gave none: of the prompt as it was made, of the
    answer by counting its text.
    """
    for record, prompt_len in zip(records, prompt_lens, strict=True):
        if record.num_prompt_tokens is None:
            record.num_prompt_tokens = prompt_len
        if record.num_output_tokens is None:
            record.num_output_tokens = count(record.text)


def measure(
    run: Run, percentiles: Sequence[float], slo: Slo | None, *, is_limited: bool
) -> Metrics:
    """The figures; records have their tokens counted. `is_limited` tells whether requests waited in the client."""
    good = [record for record in run.records if record.is_good]
    tpots = [tpot_of(record) for record in good]
    times: dict[str, Sequence[float]] = {
        "ttft": [record.ttft for record in good if record.piece_times],
        "tpot": [tpot for tpot in tpots if tpot is not None],
        "itl": [gap for record in good for gap in record.itls],
        "e2el": [record.e2el for record in good],
    }
    if is_limited:
        times["client_queue_time"] = [record.queue_time for record in good]
        times["e2el_including_client_queue"] = [r.queue_time + r.e2el for r in good]
    delays = [0.0 if is_limited else record.queue_time for record in run.records]
    return Metrics(
        duration=max(run.seconds, 1e-9),
        completed=len(good),
        failed=sum(bool(record.error) for record in run.records),
        unfinished=sum(not record.is_over for record in run.records),
        total_input_tokens=sum(record.num_prompt_tokens or 0 for record in good),
        total_output_tokens=sum(record.num_output_tokens or 0 for record in good),
        total_cached_tokens=_total_cached(good),
        num_good=None if slo is None else sum(_keeps_to(record, slo) for record in good),
        max_output_tokens_per_s=_most_tokens_per_second(good),
        max_concurrent_requests=_most_at_a_time(run),
        max_send_delay_ms=1000 * max(delays, default=0.0),
        times={name: Statistics.of(values, percentiles) for name, values in times.items()},
    )


def tpot_of(record: Record) -> float | None:
    """Seconds per token behind the first one; None with one token only."""
    num_tokens = record.num_output_tokens or 0
    return (record.e2el - record.ttft) / (num_tokens - 1) if num_tokens > 1 else None


def as_fields(metrics: Metrics) -> dict[str, Any]:
    """All of it as the fields of vLLM's JSON."""
    fields: dict[str, Any] = {
        "duration": metrics.duration,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "unfinished": metrics.unfinished,
        "total_input_tokens": metrics.total_input_tokens,
        "total_output_tokens": metrics.total_output_tokens,
        "total_cached_tokens": metrics.total_cached_tokens,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "max_output_tokens_per_s": metrics.max_output_tokens_per_s,
        "max_concurrent_requests": metrics.max_concurrent_requests,
        "max_send_delay_ms": metrics.max_send_delay_ms,
    }
    for name in METRICS:
        if (statistics := metrics.times.get(name)) is not None:
            fields[f"mean_{name}_ms"] = statistics.mean
            fields[f"median_{name}_ms"] = statistics.median
            fields[f"std_{name}_ms"] = statistics.std
            for percentile, value in statistics.percentiles:
                fields[f"p{percentile_name(percentile)}_{name}_ms"] = value
    return fields


def _total_cached(records: Sequence[Record]) -> int | None:
    told = [r.num_cached_tokens for r in records if r.num_cached_tokens is not None]
    return sum(told) if told else None


def _keeps_to(record: Record, slo: Slo) -> bool:
    return (
        record.ttft <= slo.ttft and (tpot_of(record) or 0.0) <= slo.tpot and record.e2el <= slo.e2el
    )


def _most_tokens_per_second(records: Sequence[Record]) -> float:
    """In seconds that are counted from the first request on; pieces of an answer have equally many tokens."""
    begin = min((record.begin for record in records), default=0.0)
    seconds: dict[int, float] = {}
    for record in records:
        for time in record.piece_times:
            tokens = (record.num_output_tokens or 0) / len(record.piece_times)
            second = math.floor(time - begin)
            seconds[second] = seconds.get(second, 0.0) + tokens
    return max(seconds.values(), default=0.0)


def _most_at_a_time(run: Run) -> int:
    changes = []
    for record in run.records:
        if record.sent is not None:
            changes += [(record.sent, 1), (record.end if record.is_over else run.end, -1)]
    # One that ends as another begins has made room for it: -1 sorts first.
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
