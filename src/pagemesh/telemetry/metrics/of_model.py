"""The series of one model: metrics with its name filled in, and vLLM's with the label engine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from prometheus_client import Counter, Gauge, Histogram

from pagemesh.telemetry.metrics.labels import ENGINE
from pagemesh.telemetry.metrics.registry import Metrics
from pagemesh.telemetry.metrics.specs import CounterSpec, GaugeSpec, HistogramSpec, Spec


class ModelMetrics:
    """Gives the series of declarations whose first label is model_name."""

    def __init__(self, metrics: Metrics, model_name: str) -> None:
        self._metrics = metrics
        self._filled_in = {"model_name": model_name, "engine": ENGINE}

    def counter(self, spec: CounterSpec) -> Counter:
        """The model's only series."""
        return self._metrics.counter(spec).labels(*self._own(spec))

    def counters(self, spec: CounterSpec) -> dict[tuple[str, ...], Counter]:
        """All series of the model, by the values of its other labels, which are all known."""
        counter, own = self._metrics.counter(spec), self._own(spec)
        return {values: counter.labels(*own, *values) for values in self._other_values(spec)}

    def gauge(self, spec: GaugeSpec) -> Gauge:
        """The model's only series."""
        return self._metrics.gauge(spec).labels(*self._own(spec))

    def gauges(self, spec: GaugeSpec) -> dict[tuple[str, ...], Gauge]:
        """All series of the model, as `counters` has them."""
        gauge, own = self._metrics.gauge(spec), self._own(spec)
        return {values: gauge.labels(*own, *values) for values in self._other_values(spec)}

    def histogram(self, spec: HistogramSpec) -> Histogram:
        """The model's only series."""
        return self._metrics.histogram(spec).labels(*self._own(spec))

    def _other_values(self, spec: Spec) -> Iterator[tuple[str, ...]]:
        return product(
            *(label.values for label in spec.labels if label.name not in self._filled_in)
        )

    def _own(self, spec: Spec) -> list[str]:
        return [self._filled_in[name] for name in spec.label_names if name in self._filled_in]
