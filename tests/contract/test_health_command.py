"""`pagemesh health` asks real servers, with certificates that `pagemesh certificates` made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509

from pagemesh.cli.main import main
from pagemesh.config import MeshTlsConfig, ServerConfig
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.server import GrpcServer
from pagemesh.telemetry.metrics import Metrics


def shown(folder: Path, role: str) -> list[str]:
    settings = MeshTlsConfig.in_folder(folder, role)
    flags = ("--mesh-cert", "--mesh-key", "--mesh-ca")
    paths = (settings.mesh_cert, settings.mesh_key, settings.mesh_ca)
    return [str(word) for pair in zip(flags, paths, strict=True) for word in pair]


async def ask(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["health", *arguments])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates") / "mesh"
    assert main(["certificates", str(folder)]) == 0
    return folder


async def test_a_process_is_healthy_from_when_it_serves_until_it_drains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = GrpcServer(ServerConfig(), ())
    address = await server.start()
    assert await ask(address) == 1
    assert f"{address} says NOT_SERVING" in capsys.readouterr().err
    await server.set_serving()
    assert await ask(address) == 0
    assert capsys.readouterr().out == f"{address} serves\n"
    await server.close()
    assert await ask(address) == 1
    assert f"{address} does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("server_role", "arguments", "code"),
    [
        ("kvstore", ("kvstore",), 0),
        ("decode", ("decode",), 0),
        ("kvstore", ("health", "--role", "kvstore"), 0),
        ("kvstore", ("health", "--role", "router"), 1),
        ("kvstore", (), 1),
    ],
    ids=("itself", "a worker itself", "a probe", "somebody else there", "no certificate"),
)
async def test_with_tls_certificates_are_shown_and_asked_for(
    server_role: str, arguments: tuple[str, ...], code: int, certificates: Path
) -> None:
    identity = Identity.load(
        MeshTlsConfig.in_folder(certificates, server_role), server_role, Metrics()
    )
    server = GrpcServer(ServerConfig(), (), identity=identity)
    address = await server.start()
    await server.set_serving()
    try:
        owner, *further = arguments or ("",)
        flags = shown(certificates, owner) if owner else []
        assert await ask(address, *flags, *further) == code
    finally:
        await server.close()


def test_a_probe_says_whom_it_asks(certificates: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "127.0.0.1:1", *shown(certificates, "health")]) == 1
    assert "--role is unset, but must say who is asked" in capsys.readouterr().err


def test_certificates_are_made_once_and_never_halfway(
    certificates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in certificates.iterdir()}
    assert main(["certificates", str(certificates)]) == 0
    assert {path.name: path.read_bytes() for path in certificates.iterdir()} == before
    (tmp_path / "router.crt").write_bytes(before["router.crt"])
    assert main(["certificates", str(tmp_path)]) == 1
    assert "which has router.crt and lacks gateway.crt" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["router.crt"]
    assert main(["certificates", str(tmp_path / "router.crt" / "below")]) == 1
    assert "--folder is" in capsys.readouterr().err


def test_clients_can_check_the_gateways_own_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certificates", str(tmp_path), "--hosts", "localhost", "10.0.0.7"]) == 0
    certificate = x509.load_pem_x509_certificate((tmp_path / "https.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    assert main(["certificates", str(tmp_path), "--hosts", "no host"]) == 2
    assert "--hosts is 'no host'" in capsys.readouterr().err


@contextmanager
def gateway(status: int) -> Iterator[str]:
    """Answers one request as a gateway does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()
            self.wfile.write(b'{"missing": ["a decode worker of demo"]}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        thread.join()


def test_a_gateway_is_healthy_when_a_model_can_be_served(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with gateway(200) as url:
        assert main(["health", url]) == 0
    with gateway(503) as url:
        assert main(["health", url]) == 1
    assert "answers 503" in (said := capsys.readouterr().err)
    assert "a decode worker of demo" in said
    assert main(["health", "http://127.0.0.1:1"]) == 1
    assert main(["health", "unix:/nowhere/http.sock"]) == 1
    assert "unix:/nowhere/http.sock does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["", "router", "https://127.0.0.1:8000", "http://x:port"])
def test_an_address_that_is_none_is_refused(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", "--address", address]) in (1, 2)
    assert f"--address is {address!r}" in capsys.readouterr().err
