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

DOCUMENTS: Final = "https://github.com/pagemesh/pagemesh/blob/main/docs"
ALERTS: Final = {
    "pagemesh-serving": serving.ALERTS,
    "pagemesh-kv": kv.ALERTS,
    "pagemesh-processes": processes.ALERTS,
}
"""By group."""

_FOLDER: Final = "deploy/observability"
_NOTE: Final = (
    "# Made by `make observability` from the metrics' declarations; changes here are lost.\n"
)


def generated() -> dict[str, str]:
    """All files."""
    alerts = [alert for group in ALERTS.values() for alert in group]
    files = {
        "docs/metrics.md": metrics_page(),
        "docs/alerts.md": alerts_page(alerts),
        f"{_FOLDER}/prometheus/alerts.rules.yml": _yaml(
            {name: [_alerting(alert) for alert in group] for name, group in ALERTS.items()}
        ),
        f"{_FOLDER}/prometheus/recording.rules.yml": _yaml(
            {"pagemesh": [{"record": rule.name, "expr": rule.expr} for rule in RECORDING_RULES]}
        ),
    }
    for board in DASHBOARDS:
        files[f"{_FOLDER}/grafana/dashboards/{board.uid}.json"] = as_json(board)
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
