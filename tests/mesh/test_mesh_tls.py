"""`pagemesh up` with TLS: clients need a certificate, the mesh's own questions need none."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.mesh.harness import Mesh, running_mesh, up_command
from tests.support.certificates import Pair, make_certificate
from tests.support.late_imports import openai
from tests.support.ports import free_port

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_certificate(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def mesh(authority: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("mesh")
    server = make_certificate(folder, "server", authority)
    arguments = ["--ssl-certfile", str(server.certificate), "--ssl-keyfile", str(server.key)]
    arguments += ["--ssl-ca-certs", str(authority.certificate), "--prefill", "0"]
    with running_mesh(folder, *arguments) as running:
        yield running


def test_a_client_with_a_certificate_is_served(mesh: Mesh, authority: Pair, tmp_path: Path) -> None:
    url = f"https://{mesh.address}"
    assert f"pagemesh serves demo at {url}" in mesh.output
    assert "< The capital of France is Paris." in mesh.output
    own = make_certificate(tmp_path, "client", authority)
    trust = ssl.create_default_context(cafile=str(authority.certificate))
    trust.load_cert_chain(own.certificate, own.key)
    http_client = openai.DefaultHttpxClient(verify=trust)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http_client) as client:
        answer = client.completions.create(model="demo", prompt="The capital of", max_tokens=2)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


def test_a_client_without_one_is_not(mesh: Mesh, authority: Pair) -> None:
    trust = ssl.create_default_context(cafile=str(authority.certificate))
    with pytest.raises(httpx.TransportError):
        httpx.get(f"https://{mesh.address}/health", verify=trust, timeout=10)


def test_a_certificate_that_is_not_there_is_refused_before_anything_starts() -> None:
    command = up_command("--ssl-certfile", "/nowhere.pem", "--port", str(free_port()))
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "pagemesh up: --ssl-certfile is '/nowhere.pem', which cannot be read: "
        "No such file or directory\n"
    )
