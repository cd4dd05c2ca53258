"""The HTTP server of a process's metrics."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from pagemesh.config import MeshTlsConfig
from pagemesh.errors import ConfigError
from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.metrics_server import MetricsServer
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import transfer as declared
from tests.support.mesh_certificates import MeshAuthority


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


def test_names_have_their_colons_in_whatever_prometheus_asks_for() -> None:
    metrics = Metrics()
    metrics.counter(declared.KV_BYTES_RECEIVED).inc(7)
    server = MetricsServer("127.0.0.1", 0, metrics)
    wanted = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    request = urllib.request.Request(f"http://{server.address}/metrics", headers={"accept": wanted})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert b"\npagemesh:kv_bytes_received_total 7.0" in response.read()
    finally:
        server.close()


def test_with_an_identity_metrics_are_for_those_with_a_certificate(tmp_path: Path) -> None:
    authority = MeshAuthority(tmp_path / "mesh")
    metrics = Metrics()
    identity = authority.identity(MeshRole.DECODE, MeshRole.WORKER, metrics=metrics)
    server = MetricsServer("127.0.0.1", 0, metrics, identity)

    def page(settings: MeshTlsConfig) -> str:
        trust = ssl.create_default_context(cafile=settings.mesh_ca)
        trust.check_hostname = False
        trust.load_cert_chain(str(settings.mesh_cert), settings.mesh_key)
        with urllib.request.urlopen(
            f"https://{server.address}/metrics", timeout=5, context=trust
        ) as response:
            return str(response.read())

    def has_serial(settings: MeshTlsConfig) -> bool:
        """Whether the server shows the certificate in this file."""
        shown = ssl.get_server_certificate(split_host(server.address))
        return shown.split() == Path(str(settings.mesh_cert)).read_text().split()

    try:
        prometheus = authority.issue("prometheus", MeshRole.HEALTH)
        assert "pagemesh:certificate_expiry_timestamp_seconds" in page(prometheus)
        with socket.create_connection(split_host(server.address)):
            # Who connects and says nothing holds nobody up.
            assert page(prometheus)
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(f"http://{server.address}/metrics", timeout=5)
        stranger = MeshAuthority(tmp_path / "other").issue("prometheus", MeshRole.HEALTH)
        Path(str(stranger.mesh_ca)).write_bytes(Path(str(prometheus.mesh_ca)).read_bytes())
        with pytest.raises((urllib.error.URLError, OSError)):
            page(stranger)
        replaced = authority.issue("decode-worker", MeshRole.DECODE, MeshRole.WORKER)
        assert page(prometheus)
        assert has_serial(replaced)
    finally:
        server.close()


def split_host(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def test_a_taken_metrics_port_is_a_config_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            MetricsServer("127.0.0.1", port, Metrics())
