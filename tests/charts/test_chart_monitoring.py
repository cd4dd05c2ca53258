"""Rules and dashboards that the chart installs are those of deploy/observability, with thresholds from the values."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tests.charts.rendering import CHART, ROOT, Rendered
from tools.monitoring.thresholds import THRESHOLDS

DEPLOY = ROOT / "deploy/observability"


def groups(rendered: Rendered) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rendered.one("PrometheusRule", "rules")["spec"]["groups"]
    return found


def expr(rendered: Rendered, alert: str) -> str:
    [found] = [
        rule["expr"]
        for group in groups(rendered)
        for rule in group["rules"]
        if rule.get("alert") == alert
    ]
    return str(found)


def test_neither_is_installed_unless_it_is_asked_for() -> None:
    rendered = Rendered()
    assert rendered.of_kind("PrometheusRule") == []
    assert [name for name in rendered.names("ConfigMap") if name.endswith("dashboard")] == []


def test_the_rules_are_those_for_prometheus_alone() -> None:
    rendered = Rendered({"monitoring": {"rules": {"enabled": True, "labels": {"release": "p"}}}})
    files = ("recording.rules.yml", "alerts.rules.yml")
    written = [yaml.safe_load((DEPLOY / "prometheus" / name).read_text()) for name in files]
    assert groups(rendered) == [group for one in written for group in one["groups"]]
    assert rendered.one("PrometheusRule", "rules")["metadata"]["labels"]["release"] == "p"


def test_every_threshold_is_a_value_that_takes_effect() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    rules = values["monitoring"]["rules"]
    assert rules["thresholds"] == {name: each.value for name, each in THRESHOLDS.items()}
    # Shares are 0.5 then, all others some hundreds.
    changed = {
        name: 0.5 if each.value < 1 else each.value + 500 for name, each in THRESHOLDS.items()
    }
    rendered = Rendered({"monitoring": {"rules": {"enabled": True, "thresholds": changed}}})
    assert expr(rendered, "PagemeshRequestsSlow").endswith(" > 530")
    assert expr(rendered, "PagemeshSuccessLow").endswith(" < 0.5")
    assert expr(rendered, "PagemeshQueueLong").endswith(" > 550")
    assert expr(rendered, "PagemeshQueueVeryLong").endswith(" > 600")
    assert expr(rendered, "PagemeshPreemptions").endswith(" > 510")
    assert "@" not in json.dumps(groups(rendered))


def test_the_dashboards_are_config_maps_that_grafanas_sidecar_finds() -> None:
    rendered = Rendered({"monitoring": {"dashboards": {"enabled": True}}})
    shown = {}
    for name in rendered.names("ConfigMap"):
        if name.endswith("-dashboard"):
            found = rendered.one("ConfigMap", name)
            assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
            shown.update(found["data"])
    files = {path.name: path for path in (DEPLOY / "grafana/dashboards").glob("*.json")}
    assert shown.keys() == files.keys()
    for name, text in shown.items():
        assert json.loads(text) == json.loads(files[name].read_text(encoding="utf-8"))
