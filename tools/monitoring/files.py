"""Everything that is generated, as text by its path in the repository."""

from __future__ import annotations

from typing import Any, Final

import yaml

from tools.monitoring.alert import Alert
from tools.monitoring.alerts import kv, processes, serving
from tools.monitoring.dashboards import DASHBOARDS
from tools.monitoring.pages import alerts_page, metrics_page
from tools.monitoring.panel import as_json
from tools.monitoring.recording import RECORDING_RULES
from tools.monitoring.thresholds import filled

DOCUMENTS: Final = "https://github.com/pagemesh/pagemesh/blob/main/docs"
ALERTS: Final = {
    "pagemesh-serving": serving.ALERTS,
    "pagemesh-kv": kv.ALERTS,
    "pagemesh-processes": processes.ALERTS,
}
"""By group."""

_FOLDER: Final = "deploy/observability"
_CHART: Final = "charts/pagemesh/files/monitoring"
_NOTE: Final = (
    "# Made by `make observability` from the metrics' declarations; changes here are lost.\n"
)


def generated() -> dict[str, str]:
    """All files."""
    alerts = [alert for group in ALERTS.values() for alert in group]
    alerting = _yaml(
        {name: [_alerting(alert) for alert in group] for name, group in ALERTS.items()}
    )
    recording = _yaml(
        {"pagemesh": [{"record": rule.name, "expr": rule.expr} for rule in RECORDING_RULES]}
    )
    files = {
        "docs/metrics.md": metrics_page(),
        "docs/alerts.md": alerts_page(alerts),
        f"{_FOLDER}/prometheus/alerts.rules.yml": filled(alerting),
        f"{_FOLDER}/prometheus/recording.rules.yml": recording,
        # The chart puts its values in the place of the thresholds' names. Helm reads nothing outside of the chart.
        f"{_CHART}/alerts.rules.yml": alerting,
        f"{_CHART}/recording.rules.yml": recording,
    }
    for board in DASHBOARDS:
        text = as_json(board)
        files[f"{_FOLDER}/grafana/dashboards/{board.uid}.json"] = text
        files[f"{_CHART}/dashboards/{board.uid}.json"] = text
    return files


def _alerting(alert: Alert) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": alert.name, "expr": alert.expr}
    if alert.wait != "0m":
        rule["for"] = alert.wait
    return {
        **rule,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{DOCUMENTS}/alerts.md#{alert.name.lower()}",
        },
    }


def _yaml(groups: dict[str, list[dict[str, Any]]]) -> str:
    listed = {"groups": [{"name": name, "rules": rules} for name, rules in groups.items()]}
    return _NOTE + yaml.safe_dump(listed, sort_keys=False, width=1000)
