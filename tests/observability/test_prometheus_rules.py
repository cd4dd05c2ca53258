"""Prometheus' own promtool says when alerts fire and what is recorded."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.observability.rule_cases import ALERT_CASES, RECORDING_CASES, AlertCase, Series
from tests.support.needs import program
from tools.monitoring.files import ALERTS
from tools.monitoring.recording import RECORDING_RULES

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/observability/prometheus"
KINDS = ("recording", "alerts")
NAMES = [alert.name for group in ALERTS.values() for alert in group]


def promtool(*arguments: str) -> str:
    """What it complains about; empty when all is well."""
    command = [program("promtool", of="prometheus"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def verdict(folder: Path, *tests: dict[str, Any]) -> str:
    """What promtool finds wrong with these tests of the rules."""
    files = []
    for index, test in enumerate(tests):
        rules, file = folder / f"rules-{index}.yml", folder / f"tests-{index}.yml"
        (asked,) = test["promql_expr_test"]
        groups = {"groups": groups_for(asked["expr"])}
        rules.write_text(yaml.safe_dump(groups, sort_keys=False))
        content = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        files.append(str(file))
    return promtool("test", "rules", *files)


def groups_for(expr: str) -> list[dict[str, Any]]:
    """The groups of our files, with the rules that an expression names or that these name: all others
    would be computed for each minute of each test as well."""
    texts = [expr]
    wanted: set[str] = set()
    while texts:
        named = set(re.findall(r"[\w:]+", texts.pop()))
        found = {name: rule for name, rule in all_rules().items() if name in named - wanted}
        wanted |= found.keys()
        texts += [rule["expr"] for rule in found.values()]
    groups = [
        {**group, "rules": [rule for rule in group["rules"] if name_of(rule) in wanted]}
        for group in all_groups()
    ]
    return [group for group in groups if group["rules"]]


@functools.cache
def all_groups() -> list[dict[str, Any]]:
    files = [yaml.safe_load((RULES / f"{name}.rules.yml").read_text()) for name in KINDS]
    return [group for file in files for group in file["groups"]]


@functools.cache
def all_rules() -> dict[str, dict[str, Any]]:
    return {name_of(rule): rule for group in all_groups() for rule in group["rules"]}


def name_of(rule: dict[str, Any]) -> str:
    name: str = rule.get("record") or rule["alert"]
    return name


def case(series: Series, expr: str, at: str, samples: Mapping[str, float]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": at,
                "exp_samples": [{"labels": key, "value": value} for key, value in samples.items()],
            }
        ],
    }


def firing(alert: str) -> str:
    return f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'


def test_rules_and_the_configuration_for_compose_are_valid() -> None:
    assert promtool("check", "rules", str(RULES / "alerts.rules.yml")) == ""
    assert promtool("check", "rules", str(RULES / "recording.rules.yml")) == ""
    assert promtool("check", "config", str(RULES / "prometheus.yml")) == ""


def test_every_rule_has_a_case() -> None:
    assert sorted(case.alert for case in ALERT_CASES) == sorted(NAMES)
    assert len(NAMES) == len(set(NAMES)) > 20
    recorded = [rule.name for rule in RECORDING_RULES]
    assert sorted(case.record for case in RECORDING_CASES) == sorted(recorded)


@pytest.mark.parametrize("alert", ALERT_CASES, ids=lambda case: case.alert)
def test_an_alert_fires_when_it_should_and_not_otherwise(alert: AlertCase, tmp_path: Path) -> None:
    name = firing(alert.alert)
    tests = [
        case(alert.firing, name, alert.at, {"{}": 1}),
        case(alert.quiet, name, alert.at, {}),
    ]
    if alert.too_soon:
        tests.append(case(alert.firing, name, alert.too_soon, {}))
    assert verdict(tmp_path, *tests) == ""


def test_recorded_values(tmp_path: Path) -> None:
    tests = [
        case(each.series, each.record, "10m", {f"{each.record}{each.labels}": each.value})
        for each in RECORDING_CASES
    ]
    assert verdict(tmp_path, *tests) == ""


def test_waiting_requests_are_each_counted_once_by_the_name_of_then(tmp_path: Path) -> None:
    series = {
        'vllm:num_requests_waiting{component="decode",instance="d",engine="0",model_name="m"}': "4x10",
        'vllm:num_requests_waiting{component="router",instance="r",engine="0",model_name="m"}': "12x10",
        'pagemesh:requests_queued{component="router",instance="r",model_name="m"}': "8x10",
    }
    total = case(series, "sum(vllm_num_requests_waiting)", "5m", {"{}": 12})
    assert verdict(tmp_path, total) == ""


def test_promtool_tells_a_wrong_value_from_a_right_one(tmp_path: Path) -> None:
    series = {'up{component="decode",instance="d"}': "0x10"}
    wrong = case(series, firing("PagemeshTargetDown"), "5m", {})
    assert "PagemeshTargetDown" in verdict(tmp_path, wrong)


def test_every_alert_says_what_to_do_where_its_link_leads() -> None:
    page = (ROOT / "docs/alerts.md").read_text()
    rules = yaml.safe_load((RULES / "alerts.rules.yml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        annotations = rule["annotations"]
        assert set(annotations) == {"summary", "description", "runbook_url"}
        anchor = annotations["runbook_url"].partition("docs/alerts.md#")[2]
        assert anchor == rule["alert"].lower()
        section = page.partition(f"\n## {rule['alert']}\n")[2].partition("\n## ")[0]
        assert "\n1. " in section
        assert rule["labels"]["severity"] in ("critical", "warning")
