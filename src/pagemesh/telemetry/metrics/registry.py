"""Makes the declared metrics of one process, the series of one model, and the order of a page.

Scripts that look for a name anywhere in a line keep the last line that they find, so no name may come behind one that
is a part of it: that of vllm:num_requests_waiting is the last line with these letters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pagemesh.telemetry.metrics.labels import ENGINE
from pagemesh.telemetry.metrics.specs import CounterSpec, GaugeSpec, HistogramSpec, Spec

# When each series began is a series of its own, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

Reading = tuple[Sequence[str], float]
"""The values of the labels of one series, and its value."""

_Made = TypeVar("_Made", Counter, Gauge, Histogram)


class Metrics:
    """The metrics of one process, in a registry of its own so that tests can have many."""

    def __init__(self) -> None:
        self.registry = _OrderedRegistry()
        self._counters: dict[CounterSpec, Counter] = {}
        self._gauges: dict[GaugeSpec, Gauge] = {}
        self._histograms: dict[HistogramSpec, Histogram] = {}
        ProcessCollector(registry=self.registry)

    def counter(self, spec: CounterSpec) -> Counter:
        """The counter of a declaration; the same object every time."""
        if spec not in self._counters:
            made = Counter(spec.name, spec.help, spec.label_names, registry=self.registry)
            self._counters[spec] = _with_known_series(made, spec)
        return self._counters[spec]

    def gauge(self, spec: GaugeSpec) -> Gauge:
        """The gauge of a declaration; the same object every time."""
        if spec not in self._gauges:
            self._gauges[spec] = Gauge(
                spec.name, spec.help, spec.label_names, registry=self.registry
            )
        return self._gauges[spec]

    def histogram(self, spec: HistogramSpec) -> Histogram:
        """The histogram of a declaration; the same object every time."""
        if spec not in self._histograms:
            made = Histogram(
                spec.name,
                spec.help,
                spec.label_names,
                registry=self.registry,
                buckets=spec.buckets,
            )
            self._histograms[spec] = _with_known_series(made, spec)
        return self._histograms[spec]

    def read_at_scrape(
        self, spec: CounterSpec | GaugeSpec, read: Callable[[], Iterable[Reading]]
    ) -> None:
        """Ask for the series of a declaration whenever somebody scrapes: for those that come and go."""
        self.registry.register(_Reader(spec, read))

    def page(self, names: Collection[str] = ()) -> bytes:
        """What scrapers read, in Prometheus' text format; only the metrics of these names when there are any."""
        shown: Iterable[Metric] = self.registry.collect()
        if names:
            shown = [
                each for each in shown if not {each.name, f"{each.name}_total"}.isdisjoint(names)
            ]
        return generate_latest(_Listed(shown))


class _OrderedRegistry(CollectorRegistry):
    """Shows metrics in an order that suits whoever looks for a name anywhere in a line."""

    def collect(self) -> Iterator[Metric]:
        """Everything, as it is now."""
        yield from in_order(super().collect(), lambda metric: metric.name)


class _Listed(Collector):
    """Metrics that were read already."""

    def __init__(self, shown: Iterable[Metric]) -> None:
        self._shown = shown

    def collect(self) -> Iterable[Metric]:
        """These."""
        return self._shown


class _Reader(Collector):
    def __init__(
        self, spec: CounterSpec | GaugeSpec, read: Callable[[], Iterable[Reading]]
    ) -> None:
        self._spec = spec
        self._read = read

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The family without series, so that registering it asks for none."""
        yield self._family()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The family with what there is now."""
        family = self._family()
        for values, value in self._read():
            family.add_metric(list(values), value)
        yield family

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        spec = self._spec
        made = CounterMetricFamily if isinstance(spec, CounterSpec) else GaugeMetricFamily
        return made(spec.name, spec.help, labels=spec.label_names)


def _with_known_series(metric: _Made, spec: Spec) -> _Made:
    """All series that there can be from the start: what begins at 1 has never grown, for Prometheus."""
    if spec.labels:
        for values in spec.known_values():
            metric.labels(*values)
    return metric


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


Named = TypeVar("Named")


def in_order(metrics: Iterable[Named], name_of: Callable[[Named], str]) -> list[Named]:
    """The same metrics, each in front of those whose names are parts of its own; else as they were."""
    ordered: list[tuple[str, Named]] = []
    for metric in metrics:
        name = _bare(name_of(metric))
        # Whatever has this name as a part stands in front of that one already.
        place = next((i for i, (other, _) in enumerate(ordered) if other in name), len(ordered))
        ordered.insert(place, (name, metric))
    return [metric for _, metric in ordered]


def _bare(name: str) -> str:
    """What somebody would look for who does not care for whose metric it is, nor for its kind."""
    return name.rpartition(":")[2].removesuffix("_total")
