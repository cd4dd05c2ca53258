"""What the last minute was like, from counters and histograms that only ever grow.

Samples are taken when a request ends or somebody looks, at most one in a few seconds, so that nothing is done
while nothing happens.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from prometheus_client import Counter, Histogram

from pagemesh.router.prefix_metrics import Lookup
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import requests as of_requests
from pagemesh.telemetry.metrics import routing as of_routing

WINDOW_S: Final = 60.0
PERIOD_S: Final = 5.0
"""Between two samples that are kept."""

_MAX_SAMPLES: Final = math.ceil(WINDOW_S / PERIOD_S) + 2

Buckets = tuple[tuple[float, float], ...]
"""Upper bound and number of observations up to it, of each bucket; the last bound is infinite."""


class Sample(NamedTuple):
    """What was counted up to one moment."""

    at: float
    time_to_first_token: Buckets
    inter_token_latency: Buckets
    totals: Mapping[str, float]
    """By the name under which they are shown."""


class Quantiles(NamedTuple):
    """Of some observations; None where there were none."""

    num: int
    p50: float | None
    p90: float | None


class Window:
    """The difference between now and a minute ago. Belongs to one event loop."""

    def __init__(self, take: Callable[[], Sample]) -> None:
        """`take` reads the counters; called now, too."""
        self._take = take
        self._samples = deque([take()], maxlen=_MAX_SAMPLES)

    def note(self, now: float) -> None:
        """Something has changed: keep a sample, if the last one is old enough."""
        if now - self._samples[-1].at >= PERIOD_S:
            self._samples.append(self._take())

    def look(self) -> tuple[Sample, Sample]:
        """The youngest sample that is a minute old, or else the oldest there is, and one of now."""
        now = self._take()
        if now.at - self._samples[-1].at >= PERIOD_S:
            self._samples.append(now)
        before = self._samples[0]
        for sample in self._samples:
            if now.at - sample.at >= WINDOW_S:
                before = sample
        return before, now


def quantiles(before: Buckets, now: Buckets) -> Quantiles:
    """Of what was observed between two moments, as Prometheus estimates them from buckets."""
    earlier = dict(before)
    grown = tuple((bound, count - earlier.get(bound, 0.0)) for bound, count in now)
    count = round(grown[-1][1]) if grown else 0
    if count <= 0:
        return Quantiles(0, None, None)
    return Quantiles(count, _quantile(grown, 0.5), _quantile(grown, 0.9))


def _quantile(buckets: Buckets, share: float) -> float:
    wanted = share * buckets[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted and count > below:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = bound, count
    return lower


class Counters:
    """Reads what the router counts of its requests."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._time_to_first_token = metrics.histogram(of_requests.TIME_TO_FIRST_TOKEN)
        self._inter_token_latency = metrics.histogram(of_requests.INTER_TOKEN_LATENCY)
        self._prompt_tokens = metrics.counter(of_requests.PROMPT_TOKENS)
        self._generation_tokens = metrics.counter(of_requests.GENERATION_TOKENS)
        self._queried = metrics.counter(of_routing.PREFIX_TOKENS_QUERIED)
        self._delivered = metrics.counter(of_routing.PREFIX_TOKENS_DELIVERED)
        self._available = metrics.counter(of_routing.PREFIX_TOKENS_AVAILABLE)
        self._captured = metrics.counter(of_routing.PREFIX_TOKENS_CAPTURED)

    def take(self) -> Sample:
        """All of it, as it is now, over all models."""
        answered = Lookup.ANSWERED.value
        return Sample(
            self._clock(),
            _buckets(self._time_to_first_token),
            _buckets(self._inter_token_latency),
            {
                "prompt_tokens": _total(self._prompt_tokens),
                "output_tokens": _total(self._generation_tokens),
                "queried": _total(self._queried, answered),
                "available": _total(self._available),
                "captured": _total(self._captured),
                "delivered": _total(self._delivered, answered),
                "unasked": _total(self._queried) - _total(self._queried, answered),
                "unasked_delivered": _total(self._delivered) - _total(self._delivered, answered),
            },
        )


def _total(counter: Counter, lookup: str | None = None) -> float:
    return sum(
        sample.value
        for family in counter.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
        and (lookup is None or sample.labels.get("lookup") == lookup)
    )


def _buckets(histogram: Histogram) -> Buckets:
    counts: dict[float, float] = {}
    for family in histogram.collect():
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                bound = float(sample.labels["le"])
                counts[bound] = counts.get(bound, 0.0) + sample.value
    return tuple(sorted(counts.items()))
