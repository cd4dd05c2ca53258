"""The TLS overlay, observed: clients by HTTPS, and no part that speaks to whoever has no certificate."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pagemesh.config.environment import MESH_VARIABLES
from tests.compose.asking import QUESTIONS, ask
from tests.compose.compose_mesh import ComposeMesh, compose_mesh
from tests.compose.container_engine import ContainerEngine
from tests.compose.scraped import wait_until_all_are_scraped
from tests.support.late_imports import openai

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

WORKERS = ("prefill-0", "prefill-1", "decode-0", "decode-1")


@pytest.fixture(scope="module")
def mesh(engine: ContainerEngine, variables: dict[str, str]) -> Iterator[ComposeMesh]:
    overlays = ("observability", "tls", "observability-tls")
    further = {**variables, "PROMETHEUS_PORT": "0"}
    with compose_mesh(engine, overlays, further, ("gateway", *WORKERS, "prometheus")) as running:
        yield running


@pytest.fixture(scope="module")
def authority(mesh: ComposeMesh, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the volume holds for clients."""
    path = tmp_path_factory.mktemp("tls") / "https.ca"
    mesh.engine.run("cp", f"{mesh.container('gateway')}:/certificates/https.ca", str(path))
    return path


def client(mesh: ComposeMesh, trust: ssl.SSLContext) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"https://localhost:{mesh.port}/v1",
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=trust),
    )


def test_clients_are_served_by_https_and_can_check_whom_they_ask(
    mesh: ComposeMesh, authority: Path
) -> None:
    trusting = client(mesh, ssl.create_default_context(cafile=str(authority)))
    assert ask(trusting, QUESTIONS[0], 8).startswith("The capital of France is Paris")
    with pytest.raises(openai.APIConnectionError):
        ask(client(mesh, ssl.create_default_context()), QUESTIONS[0], 8)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://localhost:{mesh.port}/v1/models", timeout=10)


@pytest.mark.parametrize("part", ["router-0", "decode-0", "prefill-0", "kvstore"])
def test_a_part_answers_nobody_without_a_certificate(mesh: ComposeMesh, part: str) -> None:
    health = ("pagemesh", "health", "127.0.0.1:9000")
    nameless = [word for name in MESH_VARIABLES.values() for word in ("-u", name)]
    with pytest.raises(AssertionError, match="does not answer"):
        mesh.execute(part, "env", *nameless, *health)
    assert "serves" in mesh.execute(part, *health)


def test_prometheus_has_a_certificate_and_reads_every_part(mesh: ComposeMesh) -> None:
    wait_until_all_are_scraped(mesh)
    with pytest.raises(AssertionError, match=r"RemoteDisconnected|ConnectionReset|BadStatusLine"):
        mesh.execute(
            "router-0",
            "python",
            "-c",
            "import urllib.request as r; r.urlopen('http://decode-0:9090/metrics', timeout=5)",
        )


def test_keys_are_for_the_parts_alone_and_the_authoritys_is_nowhere(mesh: ComposeMesh) -> None:
    listed = mesh.execute("kvstore", "ls", "-ln", "/certificates").splitlines()[1:]
    names = [line.split()[-1] for line in listed]
    assert all(line.startswith("-rw-------") and line.split()[2] == "65532" for line in listed)
    roles = ("client", "decode", "gateway", "health", "https", "kvstore", "prefill", "router")
    assert names == sorted(f"{role}.{kind}" for role in roles for kind in ("ca", "crt", "key"))
