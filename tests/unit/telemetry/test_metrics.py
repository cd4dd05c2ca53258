"""The declarations and the HTTP server."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path

import pytest

from pagemesh.errors import ConfigError
from pagemesh.telemetry import metrics as declared
from pagemesh.telemetry.metric_specs import CounterSpec, GaugeSpec, HistogramSpec
from pagemesh.telemetry.metrics import Metrics, MetricsServer

ROOT = Path(__file__).resolve().parents[3]
SPECS = {
    name: value
    for name, value in vars(declared).items()
    if isinstance(value, (CounterSpec, GaugeSpec, HistogramSpec))
}


@pytest.mark.parametrize("name", SPECS)
def test_a_declaration_is_complete(name: str) -> None:
    spec = SPECS[name]
    assert re.fullmatch(r"(vllm|pagemesh):[a-z0-9_]+", spec.name)
    assert not spec.name.endswith("_total")
    assert spec.help.endswith(".")
    if isinstance(spec, HistogramSpec):
        assert list(spec.buckets) == sorted(set(spec.buckets))
        assert spec.name.endswith("_seconds")


def test_no_two_declarations_have_one_name() -> None:
    names = [spec.name for spec in SPECS.values()]
    assert len(names) == len(set(names))


def test_all_of_them_fit_into_one_registry() -> None:
    metrics = Metrics()
    for spec in SPECS.values():
        if isinstance(spec, CounterSpec):
            assert metrics.counter(spec) is metrics.counter(spec)
        elif isinstance(spec, GaugeSpec):
            assert metrics.gauge(spec) is metrics.gauge(spec)
        else:
            assert metrics.histogram(spec) is metrics.histogram(spec)


def test_nobody_else_makes_metrics() -> None:
    roots = [ROOT / "src", ROOT / "services"]
    makers = {
        path.relative_to(ROOT).as_posix()
        for root in roots
        for path in root.rglob("*.py")
        if "prometheus_client" in (text := path.read_text())
        and re.search(r"\b(Counter|Gauge|Histogram|Summary|Info|Enum)\(", text)
    }
    assert makers == {"src/pagemesh/telemetry/metrics.py"}


def test_metrics_are_served_over_http_until_closed() -> None:
    metrics = Metrics()
    metrics.counter(declared.KV_BYTES_RECEIVED).inc(7)
    server = MetricsServer("127.0.0.1", 0, metrics)
    with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=5) as response:
        assert b"pagemesh:kv_bytes_received_total 7.0" in response.read()
    server.close()
    host, _, port = server.address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)


def test_a_taken_metrics_port_is_a_config_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            MetricsServer("127.0.0.1", port, Metrics())
