"""A real Prometheus scrapes a mesh: every panel, rule and alert can be computed, and panels have data."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.observability.conftest import PARTS, ObservedMesh
from tests.observability.prometheus_server import PrometheusServer, running_prometheus
from tools.monitoring.files import ALERTS
from tools.monitoring.recording import RECORDING_RULES

pytestmark = [pytest.mark.needs("prometheus"), pytest.mark.costly]

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy/observability"
RULES = [DEPLOY / "prometheus" / name for name in ("recording.rules.yml", "alerts.rules.yml")]
WINDOW: Final = "2m"
REQUEST_TIMES: Final = "envoy_http_downstream_rq_time_count"

EMPTY: Final = {
    "Pause of requests that moved to another worker": "no worker was lost",
    "KV streams that failed": "none failed",
}
"""Panels without data in this mesh, and why."""

VLLM_QUERIES: Final = [
    'histogram_quantile(0.99, sum by(le) (rate(vllm:e2e_request_latency_seconds_bucket{model_name="demo"}[2m])))',
    'rate(vllm:e2e_request_latency_seconds_sum{model_name="demo"}[2m])'
    ' / rate(vllm:e2e_request_latency_seconds_count{model_name="demo"}[2m])',
    'rate(vllm:prompt_tokens_total{model_name="demo"}[2m])',
    'rate(vllm:generation_tokens_total{model_name="demo",engine="0"}[2m])',
    'histogram_quantile(0.95, sum by(le) (rate(vllm:inter_token_latency_seconds_bucket{model_name="demo"}[2m])))',
    'vllm:num_requests_running{model_name="demo"}',
    'vllm:num_requests_waiting{model_name="demo"}',
    'histogram_quantile(0.9, sum by(le) (rate(vllm:time_to_first_token_seconds_bucket{model_name="demo"}[2m])))',
    'vllm:kv_cache_usage_perc{model_name="demo"}',
    'sum by(le) (increase(vllm:request_prompt_tokens_bucket{model_name="demo"}[2m]))',
    'sum by(le) (increase(vllm:request_generation_tokens_bucket{model_name="demo"}[2m]))',
    'sum by(finished_reason) (increase(vllm:request_success_total{model_name="demo"}[2m]))',
    'rate(vllm:request_queue_time_seconds_sum{model_name="demo"}[2m])',
    'rate(vllm:request_prefill_time_seconds_sum{model_name="demo"}[2m])',
    'rate(vllm:request_decode_time_seconds_sum{model_name="demo"}[2m])',
    'max_over_time(vllm:request_max_num_generation_tokens_sum{model_name="demo"}[2m])',
    "sum by (engine) (rate(vllm:prefix_cache_hits_total[2m])) / sum by (engine) (rate(vllm:prefix_cache_queries_total[2m]))",
    "rate(vllm:num_preemptions_total[2m])",
    "vllm:cache_config_info",
]
"""What dashboards and autoscalers made for one vLLM server ask."""


class Shown(NamedTuple):
    """A panel of a dashboard."""

    board: str
    title: str
    exprs: Sequence[str]


def panels() -> list[Shown]:
    found = []
    for path in sorted((DEPLOY / "grafana/dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            if panel["type"] != "row":
                exprs = [target["expr"] for target in panel["targets"]]
                found.append(Shown(path.stem, panel["title"], exprs))
    return found


PANELS: Final = panels()


def filled_in(expr: str) -> str:
    """As Grafana sends it when everything is chosen."""
    for name, value in (("$__rate_interval", WINDOW), ("$model", ".*"), ("$instance", ".*")):
        expr = expr.replace(name, value)
    assert "$" not in expr
    return expr


@pytest.fixture(scope="module")
def prometheus(
    observed: ObservedMesh, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusServer]:
    """One that has seen a mesh before, under and after some load."""
    mesh = [
        {"targets": [observed.targets[part]], "labels": {"component": part.partition("-")[0]}}
        for part in PARTS
    ]
    one_server = {"targets": [observed.url.removeprefix("http://")]}
    scrapes: list[dict[str, Any]] = [
        {"job_name": "pagemesh", "static_configs": mesh},
        {"job_name": "one-server", "static_configs": [one_server]},
    ]
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), scrapes, RULES) as server:
        until(lambda: sum(server.values("up")) == len(PARTS) + 1, "all targets are scraped")
        observed.load.run()
        # Envoy tells of a histogram's values every five seconds, and of one only when it has any: what comes with it
        # has not grown yet.
        until(lambda: server.values(REQUEST_TIMES), "the first times of requests are scraped")
        observed.load.run()
        started_at = time.time()
        until(
            lambda: (
                len(server.values(f"timestamp(up) > {started_at}")) == len(PARTS) + 1
                and server.values("model:time_to_first_token_seconds:p99_5m")
                and server.values(f"increase({REQUEST_TIMES}[{WINDOW}]) > 0")
            ),
            "what the load did is scraped and recorded",
        )
        yield server


def until(is_so: Any, what: str) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, f"not within 60 s: {what}"
        time.sleep(0.2)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel.board}-{panel.title}")
def test_a_panel_can_be_computed_and_has_data(prometheus: PrometheusServer, panel: Shown) -> None:
    numbers = [prometheus.values(filled_in(expr)) for expr in panel.exprs]
    assert any(numbers) != (panel.title in EMPTY)


def test_excuses_are_for_panels_that_exist() -> None:
    assert EMPTY.keys() <= {panel.title for panel in PANELS}


def test_every_rule_is_evaluated_without_an_error(prometheus: PrometheusServer) -> None:
    groups = prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(RECORDING_RULES) + sum(map(len, ALERTS.values()))
    unwell = {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"}
    assert unwell == {}


@pytest.mark.parametrize("rule", RECORDING_RULES, ids=lambda rule: rule.name)
def test_what_is_recorded_is_there(prometheus: PrometheusServer, rule: Any) -> None:
    # No GPU is here.
    assert bool(prometheus.values(rule.name)) == (rule.name != "gpu_utilization")


def test_a_mesh_that_is_well_fires_nothing(prometheus: PrometheusServer) -> None:
    alerts = prometheus.get("alerts")["alerts"]
    assert [alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"] == []


@pytest.mark.parametrize("query", VLLM_QUERIES)
def test_what_was_made_for_one_vllm_server_reads_the_gateways_page(
    prometheus: PrometheusServer, query: str
) -> None:
    only = query.replace("{", '{job="one-server",') if "{" in query else query
    assert prometheus.values(only)


def test_targets_are_those_that_the_configuration_for_compose_finds() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    (scrape,) = config["scrape_configs"]
    (found,) = scrape["dns_sd_configs"]
    assert found["type"] == "A" and found["port"] == 9090
    assert {name.partition("-")[0] for name in found["names"]} == {
        part.partition("-")[0] for part in PARTS
    }
