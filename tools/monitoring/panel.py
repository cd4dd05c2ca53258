"""Panels and dashboards, and what Grafana makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
    VariableSort,
)

from pagemesh.telemetry.metrics.requests import PROMPT_TOKENS
from pagemesh.telemetry.metrics.specs import Spec, Unit
from tools.monitoring.query import Queries

SHOWN: Final = Queries("$__rate_interval", {"model_name": "$model", "instance": "$instance"})
"""For panels: over what Grafana thinks right, of the models and instances that are chosen."""

PER_SECOND: Final = "cps"
TOKENS_PER_SECOND: Final = "suffix: tokens/s"
REQUESTS_PER_SECOND: Final = "reqps"
BYTES_PER_SECOND: Final = "Bps"
MILLISECONDS: Final = "ms"

_DATASOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_UNITS: Final = {
    Unit.SECONDS: "s",
    Unit.TIMESTAMP: "dateTimeAsIso",
    Unit.BYTES: "bytes",
    Unit.BYTES_PER_SECOND: BYTES_PER_SECOND,
    Unit.SHARE: "percentunit",
}
_WIDTH: Final = 24


class Target(NamedTuple):
    """One query of a panel."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """What one picture shows; described by the declarations that it is about."""

    title: str
    targets: Sequence[Target]
    about: Sequence[Spec]
    unit: str | None = None
    """As Grafana calls it; that of the first metric when unset."""
    kind: Literal["graph", "stat"] = "graph"
    note: str = ""
    stacked: bool = False

    @property
    def description(self) -> str:
        """What it is and what to look at."""
        parts = [self.note] if self.note else []
        parts += [f"**{spec.series}**: {spec.help} {spec.advice}" for spec in self.about]
        return "\n\n".join(parts)


class Row(NamedTuple):
    """Panels beside each other, under a title."""

    title: str
    panels: Sequence[Panel]


class Board(NamedTuple):
    """A dashboard."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    has_models: bool = True


def as_json(board: Board) -> str:
    """What Grafana reads."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["pagemesh"])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data").type("prometheus"))
    )
    if board.has_models:
        made.with_variable(_variable("model", "Model", PROMPT_TOKENS.series, "model_name"))
    made.with_variable(_variable("instance", "Instance", 'up{component!=""}', "instance"))
    for row in board.rows:
        made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made.with_panel(_build(panel, _WIDTH // _columns(row)))
    encoded: str = JSONEncoder(sort_keys=True, indent=2).encode(made.build())
    return encoded + "\n"


def _columns(row: Row) -> int:
    """Of equal width; more than four panels are put below each other."""
    number = len(row.panels)
    if row.panels[0].kind == "stat":
        return next(columns for columns in (8, 6, 4, 3, 2, 1) if columns <= number)
    return number if number <= 3 else 2 if number == 4 else 3


def _variable(name: str, label: str, series: str, of: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(_DATASOURCE)
        .query(f"label_values({series}, {of})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _build(panel: Panel, width: int) -> timeseries.Panel | stat.Panel:
    made: timeseries.Panel | stat.Panel = (
        _graph(panel) if panel.kind == "graph" else _stat().height(4)
    )
    made.title(panel.title).description(panel.description).datasource(_DATASOURCE).span(width)
    made.unit(panel.unit or _UNITS.get(panel.about[0].unit, "short"))
    for number, target in enumerate(panel.targets):
        made.with_target(
            prometheus.Dataquery()
            .expr(target.expr)
            .legend_format(target.legend)
            .ref_id(chr(ord("A") + number))
            .datasource(_DATASOURCE)
        )
    return made


def _graph(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .height(8)
        .min(0)
        .line_width(1)
        .fill_opacity(10)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
        )
    )
    if panel.stacked:
        made.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return made


def _stat() -> stat.Panel:
    return (
        stat.Panel()
        .color_mode(BigValueColorMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
