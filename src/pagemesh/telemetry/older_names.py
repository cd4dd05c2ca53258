"""Shows metrics of today by the names that vLLM had for them once. One table says which is which."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from pagemesh.config import MetricsConfig
from pagemesh.telemetry.metrics import Metrics, engine, requests
from pagemesh.telemetry.metrics import compatibility as older
from pagemesh.telemetry.metrics.specs import CounterSpec, GaugeSpec, HistogramSpec, Spec, kind_of

RENAMED: Final[Mapping[GaugeSpec | HistogramSpec, GaugeSpec | HistogramSpec]] = {
    older.GPU_CACHE_USAGE: engine.KV_CACHE_USAGE,
    older.CPU_CACHE_USAGE: engine.SWAP_SPACE_USAGE,
    older.OLDER_TIME_PER_OUTPUT_TOKEN: requests.INTER_TOKEN_LATENCY,
}
"""What has another name today, and is the same."""

RATES: Final = {
    older.AVG_PROMPT_THROUGHPUT: requests.PROMPT_TOKENS,
    older.AVG_GENERATION_THROUGHPUT: requests.GENERATION_TOKENS,
}
"""Gauges that are the growth of a counter."""

HIT_RATES: Final = (older.GPU_PREFIX_CACHE_HIT_RATE, older.CPU_PREFIX_CACHE_HIT_RATE)
"""Gauges that are the share of hits among queries."""

WINDOW_S: Final = 5.0
"""Over which growth is measured, when pages are read so often."""

_MOST_READINGS: Final = 64

Labels = tuple[tuple[str, str], ...]


def make_metrics(config: MetricsConfig) -> Metrics:
    """Those of a router or worker, as its settings say."""
    metrics = Metrics()
    if config.older_metric_names:
        show_older_names(metrics)
    return metrics


def show_older_names(metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
    """Have the pages of a process show them."""
    metrics.registry.register(_OlderNames(metrics, clock))


class _OlderNames(Collector):
    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._growth = {spec: _Growth(clock) for spec in RATES}

    def describe(self) -> Iterator[Metric]:
        """The names alone."""
        for spec in (*RENAMED, *RATES, *HIT_RATES):
            yield _metric(spec)

    def collect(self) -> Iterator[Metric]:
        """All of them, made of what the metrics of today are now."""
        for spec, today in RENAMED.items():
            shown = _metric(spec)
            for sample in self._samples(today):
                name = spec.name + sample.name.removeprefix(today.name)
                shown.samples.append(sample._replace(name=name))
            yield shown
        for rate, counter in RATES.items():
            per_second = self._growth[rate].per_second(self._values(counter))
            yield _gauge(rate, per_second)
        queries = self._values(requests.PREFIX_CACHE_QUERIES)
        hits = self._values(requests.PREFIX_CACHE_HITS)
        for spec in HIT_RATES:
            yield _gauge(
                spec, {labels: share(hits.get(labels, 0.0), of) for labels, of in queries.items()}
            )

    def _values(self, spec: CounterSpec) -> dict[Labels, float]:
        return {tuple(sample.labels.items()): sample.value for sample in self._samples(spec)}

    def _samples(self, spec: CounterSpec | GaugeSpec | HistogramSpec) -> Iterator[Sample]:
        match spec:
            case CounterSpec():
                made = self._metrics.counter(spec).collect()
            case GaugeSpec():
                made = self._metrics.gauge(spec).collect()
            case HistogramSpec():
                made = self._metrics.histogram(spec).collect()
        for metric in made:
            yield from metric.samples


class _Growth:
    """How fast numbers grow, from readings that come when they come."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._readings: deque[tuple[float, dict[Labels, float]]] = deque(maxlen=_MOST_READINGS)
        self._readings.append((clock(), {}))

    def per_second(self, values: dict[Labels, float]) -> dict[Labels, float]:
        """Since the last reading that is as old as the window, or the oldest."""
        now = self._clock()
        while len(self._readings) > 1 and now - self._readings[1][0] >= WINDOW_S:
            self._readings.popleft()
        then, before = self._readings[0]
        # Of many readers, some are as good as all.
        if now - self._readings[-1][0] >= WINDOW_S / _MOST_READINGS:
            self._readings.append((now, values))
        seconds = now - then
        return {
            labels: (value - before.get(labels, 0.0)) / seconds if seconds > 0 else 0.0
            for labels, value in values.items()
        }


def share(part: float, whole: float) -> float:
    """0 of nothing."""
    return part / whole if whole else 0.0


def _metric(spec: Spec) -> Metric:
    return Metric(spec.name, spec.help, kind_of(spec))


def _gauge(spec: GaugeSpec, values: Mapping[Labels, float]) -> Metric:
    shown = _metric(spec)
    for labels, value in values.items():
        shown.add_sample(spec.name, dict(labels), value)
    return shown
