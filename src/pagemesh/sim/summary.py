"""What a run amounts to: hit rates, times, goodput, balance. Plain numbers."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pagemesh.router.routing.candidate import Role
from pagemesh.sim.records import Outcome, Record
from pagemesh.sim.simulation import Run
from pagemesh.workload.slo import Slo


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy at one rate. Times in seconds, shares from 0 to 1."""

    policy: str
    request_rate: float
    """Requests per second that came."""
    num_requests: int
    outcomes: dict[str, int]
    paths: dict[str, int]
    """Completed requests by the way on which their KV came."""

    shared_hit_rate: float
    """Share of all prompt tokens that an endless cache shared by all workers would have had."""
    available_hit_rate: float
    """That the index knew of on some worker."""
    captured_hit_rate: float
    """That the index knew of on the chosen workers."""
    delivered_hit_rate: float
    """That were not computed anew; requests that were refused have none."""

    ttft_p50: float | None
    ttft_p90: float | None
    ttft_p99: float | None
    """Of all requests that got a first token, late ones too; None where no one did."""
    itl_p50: float | None
    itl_p99: float | None
    """Between two tokens of a request; None where no one got two."""

    throughput: float
    """Completed requests per second."""
    token_throughput: float
    """Generated tokens per second."""
    goodput: float
    """Requests per second that completed within all limits."""
    good_share: float
    """Their share of all that came; refused and late ones are misses."""

    imbalance: float
    """Busy time of the busiest decode worker over the mean of all."""
    assigned: list[int]
    """Requests that each decode worker was sent."""
    num_preemptions: int
    seconds: float
    """Simulated."""
    num_events: int


def summarize(run: Run, policy: str, slo: Slo) -> Summary:
    """The figures of one run."""
    records = run.records
    first, last = (f(record.arrived_at for record in records) for f in (min, max))
    duration = max(run.seconds - first, 1e-9)
    ttfts = sorted(t for record in records if (t := record.ttft) is not None)
    outcomes = Counter(outcome_of(record) for record in records)
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    num_good = sum(is_good(record, slo) for record in records)
    decoders = [worker for worker in run.workers if worker.role is Role.DECODE]
    busy = [worker.busy_seconds for worker in decoders]
    return Summary(
        policy=policy,
        request_rate=(len(records) - 1) / (last - first) if last > first else 0.0,
        num_requests=len(records),
        outcomes=dict(sorted(outcomes.items())),
        paths=dict(sorted(Counter(record.path.value for record in completed).items())),
        shared_hit_rate=_hit_rate(records, "num_shared_tokens"),
        available_hit_rate=_hit_rate(records, "num_available_tokens"),
        captured_hit_rate=_hit_rate(records, "num_captured_tokens"),
        delivered_hit_rate=_hit_rate(records, "num_delivered_tokens"),
        ttft_p50=percentile(ttfts, 0.5),
        ttft_p90=percentile(ttfts, 0.9),
        ttft_p99=percentile(ttfts, 0.99),
        itl_p50=run.token_times.percentile(0.5),
        itl_p99=run.token_times.percentile(0.99),
        throughput=len(completed) / duration,
        token_throughput=sum(record.num_generated_tokens for record in records) / duration,
        goodput=num_good / duration,
        good_share=num_good / len(records),
        imbalance=max(busy) / statistics.mean(busy) if any(busy) else 1.0,
        assigned=[worker.num_assigned for worker in decoders],
        num_preemptions=sum(worker.num_preemptions for worker in run.workers),
        seconds=run.seconds,
        num_events=run.num_events,
    )


def outcome_of(record: Record) -> str:
    """How a request ended, by name."""
    assert record.outcome is not None, "every request has ended"
    return record.outcome.value


def is_good(record: Record, slo: Slo) -> bool:
    """Whether a request completed within all limits."""
    ttft = record.ttft
    return (
        record.outcome is Outcome.COMPLETED
        and ttft is not None
        and ttft <= slo.ttft
        and record.tpot <= slo.tpot
        and record.ended_at - record.arrived_at <= slo.e2el
    )


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The least of them that this share does not exceed; None of none."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def _hit_rate(records: Sequence[Record], field: str) -> float:
    num_tokens: int = sum(getattr(record, field) for record in records)
    return num_tokens / sum(record.num_prompt_tokens for record in records)
