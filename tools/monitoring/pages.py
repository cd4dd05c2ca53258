"""docs/metrics.md and docs/alerts.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pagemesh.telemetry.metrics.catalog import ABSENT, AREAS
from pagemesh.telemetry.metrics.specs import ForeignSpec, HistogramSpec, Label, Spec, kind_of
from tools.monitoring.alert import Alert
from tools.monitoring.recording import RECORDING_RULES
from tools.monitoring.thresholds import THRESHOLDS, filled, named_in

_METRICS_HEAD: Final = """\
# Metrics

Made by `make observability` from the declarations in [src/pagemesh/telemetry/metrics](../src/pagemesh/telemetry/metrics/__init__.py). How to scrape them and what to look at first: [observability.md](observability.md); what to be told of: [alerts.md](alerts.md).

Names are vLLM's where vLLM has one, with its labels `model_name` and `engine`. Each process shows itself as one engine, `engine="0"`; a router shows the whole mesh as one, so what it and the workers show must not be added up. Labels never have values of a client's making: their values are listed here, or what bounds their number.

"""

_VLLM_HEAD: Final = """\
## vLLM's that are not here

| name | why |
|---|---|
"""

_RECORDED_HEAD: Final = """\
## Recorded

Prometheus computes these with [recording.rules.yml](../deploy/observability/prometheus/recording.rules.yml), over all processes:

| name | what it is |
|---|---|
"""

_ALERTS_HEAD: Final = """\
# Alerts

Made by `make observability` from `tools/monitoring/alerts`. The rules are in [alerts.rules.yml](../deploy/observability/prometheus/alerts.rules.yml); they need the label `component` ([observability.md](observability.md#prometheus)), and the recorded metrics of [recording.rules.yml](../deploy/observability/prometheus/recording.rules.yml). Thresholds are where most meshes are in trouble: change them to what your users were promised. Those with a name are values of the chart (`monitoring.rules.thresholds`).

| alert | severity | when |
|---|---|---|
"""


def metrics_page() -> str:
    """All metrics by area, with a section for each."""
    parts = [_METRICS_HEAD]
    for title, area in AREAS.items():
        parts.append(f"## {title}\n\n{area.about}\n\n")
        parts += [_metric(spec) for spec in area.specs]
    parts.append(_RECORDED_HEAD)
    parts += [f"| `{rule.name}` | {rule.help} |\n" for rule in RECORDING_RULES]
    parts.append("\n" + _VLLM_HEAD)
    parts += [f"| `{name}` | {why} |\n" for name, why in ABSENT.items()]
    return "".join(parts)


def _metric(spec: Spec) -> str:
    kind = kind_of(spec)
    about = [f"{kind}, {spec.unit.value}", " · ".join(p.value for p in spec.processes)]
    if isinstance(spec, ForeignSpec):
        about.append(f"made by {spec.origin}")
    if spec.only_with:
        about.append(f"only with `{spec.only_with}`")
    lines = [f"### `{spec.series}`", "", f"*{'; '.join(about)}*", "", spec.help, ""]
    lines += [f"- {_label(label)}" for label in spec.labels]
    if isinstance(spec, HistogramSpec):
        lines.append(f"- {len(spec.buckets)} buckets up to {spec.buckets[-1]:g}")
    if lines[-1]:
        lines.append("")
    lines += [spec.advice, "", ""]
    return "\n".join(lines)


def _label(label: Label) -> str:
    if label.values:
        return f"`{label.name}`: " + ", ".join(f"`{value}`" for value in label.values)
    return f"`{label.name}`: {label.source}"


def alerts_page(alerts: Sequence[Alert]) -> str:
    """All alerts, with what to do for each."""
    table = (
        f"| [{alert.name}](#{alert.name.lower()}) | {alert.severity} | {alert.summary} |\n"
        for alert in alerts
    )
    return _ALERTS_HEAD + "".join(table) + "\n" + "\n".join(map(_alert, alerts))


def _alert(alert: Alert) -> str:
    wait = "at once" if alert.wait == "0m" else f"after {alert.wait}"
    lines = [
        f"## {alert.name}",
        "",
        f"{alert.summary}: {alert.severity}, {wait}.",
        "",
        "```text",
        filled(alert.expr),
        "```",
        "",
        *(f"{number}. {action}" for number, action in enumerate(alert.actions, 1)),
        "",
    ]
    for name in named_in(alert.expr):
        aim = THRESHOLDS[name].target
        aimed = f"; guides aim at {aim}" if aim else ""
        lines += [f"Threshold: {filled(f'@{name}@')} (`{name}`){aimed}.", ""]
    if alert.about:
        lines += [f"Metrics: {_links(alert.about)}.", ""]
    return "\n".join(lines)


def _links(specs: Iterable[Spec]) -> str:
    # As GitHub and MkDocs make anchors of headings: without what is neither letter, digit, dash nor underscore.
    return ", ".join(
        f"[`{spec.series}`](metrics.md#{spec.series.replace(':', '')})" for spec in specs
    )
