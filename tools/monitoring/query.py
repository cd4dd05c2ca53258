"""PromQL made from declarations: a metric or label that does not exist is an error here, not an empty panel.

Targets have the label `component`, which says what process they are (docs/observability.md); of what several
processes show, a query names the one that it is about, so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pagemesh.telemetry.metrics.specs import HistogramSpec, Process, Spec, kind_of

COMPONENT: Final = "component"
TARGET_LABELS: Final = (COMPONENT, "instance", "job")


@dataclass(frozen=True, slots=True)
class Queries:
    """Makes queries over one window."""

    window: str
    """That rates are taken over."""

    matchers: Mapping[str, str] = field(default_factory=dict)
    """By label: what its value must match, of metrics that have it."""

    def series(self, spec: Spec, *components: Process, ending: str = "", **labels: str) -> str:
        """Series of a metric on some processes, all of its own when none is named.

        A label's value is a regular expression when it has a vertical bar.
        """
        wanted = components or spec.processes
        assert set(wanted) <= set(spec.processes), f"{spec.name} is not of all of {wanted}"
        pairs = [_match(COMPONENT, "|".join(process.value for process in wanted))]
        for name, matcher in self.matchers.items():
            if name in spec.label_names or name in TARGET_LABELS:
                pairs.append(f'{name}=~"{matcher}"')
        for name, value in labels.items():
            known = spec.label(name).values
            assert not known or set(value.split("|")) <= set(known), f"{spec.name}: {name}={value}"
            pairs.append(_match(name, value))
        return f"{spec.series}{ending}{{{','.join(pairs)}}}"

    def total(self, spec: Spec, *components: Process, by: Sequence[str] = (), **labels: str) -> str:
        """The sum of a gauge."""
        return f"{_sum(spec, by)} ({self.series(spec, *components, **labels)})"

    def rate(
        self,
        spec: Spec,
        *components: Process,
        by: Sequence[str] = (),
        ending: str = "",
        **labels: str,
    ) -> str:
        """Growth per second, summed."""
        assert kind_of(spec) == "counter" or ending, f"{spec.name} is no counter"
        series = self.series(spec, *components, ending=ending, **labels)
        return f"{_sum(spec, by)} (rate({series}[{self.window}]))"

    def quantile(
        self, share: float, spec: Spec, *components: Process, by: Sequence[str] = (), **labels: str
    ) -> str:
        """That of a histogram."""
        assert kind_of(spec) == "histogram"
        rate = self.rate(spec, *components, by=["le", *by], ending="_bucket", **labels)
        return f"histogram_quantile({share:g}, {rate})"

    def mean(self, spec: Spec, *components: Process, by: Sequence[str] = (), **labels: str) -> str:
        """That of a histogram."""
        assert kind_of(spec) == "histogram"
        sums, counts = (
            self.rate(spec, *components, by=by, ending=ending, **labels)
            for ending in ("_sum", "_count")
        )
        return f"{sums} / {counts}"

    def within(
        self, seconds: float, spec: HistogramSpec, *components: Process, by: Sequence[str] = ()
    ) -> str:
        """Share of a histogram's observations that are at most so large: one of its bounds."""
        assert seconds in spec.buckets, f"{spec.name} has no bound {seconds}"
        bounded = self.series(spec, *components, ending="_bucket")
        bounded = f'{bounded[:-1]},le="{float(seconds)}"}}'
        counts = self.rate(spec, *components, by=by, ending="_count")
        return f"{_sum(spec, by)} (rate({bounded}[{self.window}])) / {counts}"


def ratio(part: str, whole: str) -> str:
    """One query in another; nothing where there is nothing."""
    return f"{part} / {whole}"


def _match(name: str, value: str) -> str:
    return f'{name}=~"{value}"' if "|" in value else f'{name}="{value}"'


def _sum(spec: Spec, by: Sequence[str]) -> str:
    for name in by:
        assert name in spec.label_names or name in (*TARGET_LABELS, "le"), f"{spec.name} by {name}"
    return f"sum by ({', '.join(by)})" if by else "sum"
