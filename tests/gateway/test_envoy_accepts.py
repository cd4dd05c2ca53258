"""Envoy accepts whatever configuration the settings can make, without a warning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagemesh.config import CorsConfig, GatewayConfig, HttpLimitsConfig, TlsConfig, TracesConfig
from pagemesh.gateway.process import envoy_command
from tests.support.certificates import Pair, make_certificate

WORDS = st.lists(st.sampled_from(["*", "https://a.example", "x-a", "GET"]), max_size=3).map(tuple)


def validated(config: GatewayConfig) -> tuple[int, str]:
    command = [*envoy_command(config), "--mode", "validate"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return checked.returncode, checked.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    make_certificate(made, "server")
    return made


def tls(folder: Path) -> st.SearchStrategy[TlsConfig]:
    pair = Pair(folder / "server.crt", folder / "server.key")
    clients = str(pair.certificate)
    made = [TlsConfig(), pair.settings(), pair.settings(ssl_ca_certs=clients)]
    made += [pair.settings(ssl_ca_certs=clients, ssl_cert_reqs=value) for value in (0, 1, 2)]
    return st.sampled_from(made)


def traces() -> st.SearchStrategy[TracesConfig]:
    endpoint = st.sampled_from([None, "[::1]:4317", "http://collector:4317", "https://c.example:1"])
    by_http = st.sampled_from(["[::1]:4318", "https://c.example/v1/traces"])
    share = st.sampled_from([None, 0.0, 0.001, 1.0])
    grpc = st.builds(TracesConfig, endpoint, share)
    return grpc | st.builds(TracesConfig, by_http, share, st.just("http/protobuf"))


def configs(folder: Path) -> st.SearchStrategy[GatewayConfig]:
    router = st.sampled_from(["127.0.0.1:1", "[::1]:2", "router.example:50051"])
    sizes = st.sampled_from([1, 7, 1024])
    seconds = st.sampled_from([0.001, 0.25, 1.0, 90.5, 604800.0])
    return st.builds(
        GatewayConfig,
        routers=st.lists(router, min_size=1, max_size=3).map(tuple),
        host=st.sampled_from(["127.0.0.1", "0.0.0.0", "::1", "::"]),
        port=st.sampled_from([1, 8000, 65535]),
        local_socket=st.sampled_from([None, str(folder / "local.sock")]),
        admin_socket=st.just(str(folder / "admin.sock")),
        metrics_port=st.sampled_from([None, 2, 9090]),
        access_log=st.sampled_from([None, "-", str(folder / "access.jsonl")]),
        api_key_required=st.booleans(),
        concurrency=st.sampled_from([1, 3]),
        tls=tls(folder),
        cors=st.builds(CorsConfig, WORDS, WORDS, WORDS, st.booleans()),
        limits=st.builds(HttpLimitsConfig, sizes, sizes, sizes, sizes, seconds, seconds),
        traces=traces(),
    )


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_settings(data: st.DataObject, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert validated(data.draw(configs(folder))) == (0, "")
