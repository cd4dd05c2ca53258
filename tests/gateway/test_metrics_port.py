"""What Prometheus gets of the gateway: the metrics that are declared, and nothing else of Envoy."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagemesh.config import HttpLimitsConfig
from pagemesh.identity.roles import MeshRole
from pagemesh.telemetry.metrics import gateway as envoy
from pagemesh.telemetry.metrics.catalog import specs_of
from tests.gateway.conftest import Gateway, running_gateway
from tests.support.mesh_certificates import MeshAuthority
from tests.support.metrics import metric
from tests.support.ports import free_port

# The parser takes `_total` from the names of counters, whether they have it or not.
DECLARED = {spec.name.removesuffix("_total"): spec for spec in specs_of(envoy)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("measured")
    with running_gateway(folder, metrics_port=free_port()) as running:
        yield running


def metrics_url(gateway: Gateway) -> str:
    return f"http://127.0.0.1:{gateway.config.metrics_port}"


def page(gateway: Gateway) -> str:
    answer = httpx.get(f"{metrics_url(gateway)}/metrics", timeout=10)
    assert answer.status_code == 200
    return answer.text


def test_exactly_what_is_declared_is_shown_with_exactly_its_labels(measured: Gateway) -> None:
    assert httpx.get(f"{measured.url}/health", timeout=10).status_code == 200
    deadline = time.monotonic() + 20
    # Envoy tells of a histogram's values every five seconds.
    while envoy.REQUEST_TIME.name not in (text := page(measured)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    shown = names_and_labels(text)
    assert {name for name, _ in shown} == set(DECLARED)
    for name, pairs in shown:
        labels = {key: value for key, value in pairs if key != "le"}
        assert set(labels) == set(DECLARED[name].label_names)
        for label, value in labels.items():
            assert value in DECLARED[name].label(label).values


@pytest.mark.parametrize("path", ["/stats/prometheus", "/metrics"])
def test_envoys_path_and_prometheus_own_give_the_same(measured: Gateway, path: str) -> None:
    text = httpx.get(metrics_url(measured) + path, timeout=10).text
    assert metric(text, "envoy_cluster_membership_healthy") == 1


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/stats",
        "/stats/prometheus/",
        "/stats/prometheus?filter=.*",
        "/metrics?usedonly",
        "/metrics/../config_dump",
        "/config_dump",
        "/certs",
        "/clusters",
        "/server_info",
        "//stats/prometheus",
        "/v1/models",
    ],
)
def test_nothing_else_of_envoy_is_there(measured: Gateway, path: str) -> None:
    assert httpx.get(metrics_url(measured) + path, timeout=10).status_code == 404


@pytest.mark.parametrize(
    "path", ["/quitquitquit", "/drain_listeners", "/metrics", "/healthcheck/fail"]
)
def test_nobody_can_change_anything(measured: Gateway, path: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        answer = httpx.request(method, metrics_url(measured) + path, timeout=10)
        assert answer.status_code == 404
    assert httpx.get(f"{measured.url}/health", timeout=10).status_code == 200


def test_odd_requests_make_no_series(measured: Gateway) -> None:
    with httpx.Client(base_url=measured.url, timeout=10) as client:
        client.get("/health")
        client.post("/v1/chat/completions", json={})
        before = names_and_labels(page(measured))
        for number in range(40):
            client.get(f"/odd/route-{number}?x={number}")
            client.request(f"METHOD{number}", f"/{number}")
            client.get("/health", headers={"x-request-id": f"id-{number}", "host": f"h{number}"})
        after = names_and_labels(page(measured))
    grown = {name for name, _ in after - before}
    # A first answer of another class, and a first time.
    assert grown <= {"envoy_http_downstream_rq_time", "envoy_http_downstream_rq_xx"}


def names_and_labels(text: str) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (family.name.removesuffix("_total"), tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_gateway_that_is_full_still_shows_that_it_is(tmp_path: Path) -> None:
    limits = HttpLimitsConfig(max_connections=1)
    with (
        running_gateway(tmp_path, metrics_port=free_port(), limits=limits) as full,
        httpx.Client(base_url=full.url, timeout=10) as client,
    ):
        assert client.get("/health").status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{full.url}/health", timeout=10)
        assert metric(page(full), "envoy_http_downstream_cx_active") >= 1


def test_with_tls_between_the_processes_metrics_are_for_those_with_a_certificate(
    tmp_path: Path,
) -> None:
    authority = MeshAuthority(tmp_path / "mesh")
    identity = authority.identity(MeshRole.ROUTER)
    mesh = authority.issue("gateway", MeshRole.GATEWAY)
    with running_gateway(
        tmp_path, router_identity=identity, mesh=mesh, metrics_port=free_port()
    ) as gateway:
        url = f"https://127.0.0.1:{gateway.config.metrics_port}/metrics"
        prometheus = authority.issue("prometheus", MeshRole.HEALTH)
        trust = ssl.create_default_context(cafile=prometheus.mesh_ca)
        trust.check_hostname = False
        with pytest.raises(httpx.TransportError):
            httpx.get(url, timeout=10, verify=trust)
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http"), timeout=10)
        trust.load_cert_chain(str(prometheus.mesh_cert), prometheus.mesh_key)
        answer = httpx.get(url, timeout=10, verify=trust)
        assert answer.status_code == 200
        assert metric(answer.text, "envoy_server_live") == 1
