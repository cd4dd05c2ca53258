"""TLS for clients: versions, protocols, client certificates, and certificates that are replaced."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from pagemesh.cli.arguments import to_arguments
from pagemesh.config import GatewayConfig
from pagemesh.v1 import inference_pb2, inference_pb2_grpc
from tests.gateway.conftest import Gateway, running_gateway
from tests.support.certificates import Pair, make_certificate
from tests.support.late_imports import openai


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_certificate(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def secured(authority: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("secured")
    pair = make_certificate(folder, "server", authority)
    with running_gateway(folder, tls=pair.settings()) as running:
        yield running


def trusting(authority: Pair, client: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


def served_certificate(gateway: Gateway) -> str:
    with socket.create_connection(("127.0.0.1", gateway.config.port), timeout=10) as raw:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(raw) as connection:
            return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"")


def test_the_openai_client_works_over_tls(secured: Gateway, authority: Pair) -> None:
    assert secured.url.startswith("https://")
    client = openai.OpenAI(
        base_url=f"{secured.url}/v1",
        api_key="k",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=trusting(authority)),
    )
    with client:
        assert [model.id for model in client.models.list()] == ["m"]


def test_native_grpc_works_over_tls(secured: Gateway, authority: Pair) -> None:
    trust = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    with grpc.secure_channel(secured.address, trust) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        answers = stub.Generate(inference_pb2.GenerateRequest(text="hello"), timeout=10)
        assert [answer.text for answer in answers] == ["hello"]


def test_nothing_is_served_in_the_clear(secured: Gateway) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{secured.address}/health", timeout=5)


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_both_protocols_are_offered(secured: Gateway, authority: Pair, protocol: str) -> None:
    context = trusting(authority)
    context.set_alpn_protocols([protocol])
    with (
        socket.create_connection(("127.0.0.1", secured.config.port), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as connection,
    ):
        assert connection.selected_alpn_protocol() == protocol


@pytest.mark.parametrize(
    ("version", "name"), [(ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")]
)
def test_new_versions_are_spoken_and_logged(
    secured: Gateway, authority: Pair, version: ssl.TLSVersion, name: str
) -> None:
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    headers = {"x-request-id": name}
    with httpx.Client(verify=context) as client:
        assert client.get(f"{secured.url}/health", headers=headers).status_code == 200
    assert secured.log_entry(name)["tls"] == name


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_versions_are_refused(secured: Gateway, authority: Pair) -> None:
    context = trusting(authority)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", secured.config.port), timeout=10) as raw,
        pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"),
    ):
        context.wrap_socket(raw, server_hostname="localhost")


def test_a_replaced_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    first, second = make_certificate(live, "server"), make_certificate(tmp_path, "renewed")
    with running_gateway(tmp_path, tls=first.settings()) as running:
        assert served_certificate(running) == first.certificate.read_text()
        for new, old in zip(second, first, strict=True):
            shutil.copy(new, live / "new")
            (live / "new").replace(old)
        deadline = time.monotonic() + 20
        while served_certificate(running) != second.certificate.read_text():
            assert time.monotonic() < deadline, "the old certificate is still served"
            time.sleep(0.02)
        assert running.process.poll() is None


@pytest.mark.parametrize(
    ("requirement", "nobody", "stranger"),
    [(None, False, False), (2, False, False), (1, True, False), (0, True, True)],
    ids=["unset", "required", "optional", "ignored"],
)
def test_client_certificates(
    authority: Pair, tmp_path: Path, requirement: int | None, nobody: bool, stranger: bool
) -> None:
    pair = make_certificate(tmp_path, "server", authority)
    clients = {
        "known": (make_certificate(tmp_path, "client", authority), True),
        "nobody": (None, nobody),
        "stranger": (make_certificate(tmp_path, "stranger"), stranger),
    }
    tls = pair.settings(ssl_ca_certs=str(authority.certificate), ssl_cert_reqs=requirement)
    with running_gateway(tmp_path, tls=tls) as running:
        for name, (certificate, served) in clients.items():
            with httpx.Client(verify=trusting(authority, certificate), timeout=10) as client:
                try:
                    answered = client.get(f"{running.url}/health").status_code == 200
                except httpx.TransportError:
                    answered = False
            assert answered == served, name


def refusal(config: GatewayConfig) -> str:
    command = [sys.executable, "-m", "pagemesh.cli", "gateway", *to_arguments(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    return line


def test_a_certificate_that_cannot_be_used_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    tls = make_certificate(tmp_path, "server").settings(ssl_ca_certs="/nowhere.pem")
    assert refusal(GatewayConfig(routers=("127.0.0.1:1",), tls=tls)) == (
        "pagemesh gateway: --ssl-ca-certs is '/nowhere.pem', which cannot be read: "
        "No such file or directory"
    )
