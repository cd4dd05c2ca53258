"""A mesh under load with a gateway that shows its metrics, and a real Prometheus that scrapes all of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Mapping

import httpx
import pytest

from pagemesh.cli.arguments import to_arguments
from pagemesh.cli.up.readiness import http_answers
from pagemesh.config import GatewayConfig
from tests.mesh.conftest import DEMO
from tests.mesh.harness import Mesh, option, running_mesh
from tests.observability.load import Load
from tests.support.ports import free_port

ASKED = {
    "accept": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
}
"""What Prometheus wants to have."""

PARTS = ("gateway", "router", "prefill-0", "decode-0", "kvstore")


class ObservedMesh:
    """Where everything is."""

    def __init__(self, mesh: Mesh, gateway: GatewayConfig) -> None:
        self.url = f"http://127.0.0.1:{gateway.port}"
        self.load = Load(self.url)
        self.targets: Mapping[str, str] = {
            part: f"127.0.0.1:{gateway.metrics_port}"
            if part == "gateway"
            else f"127.0.0.1:{option(mesh.parts()[part], '--metrics-port')}"
            for part in PARTS
        }
        """host:port of the metrics of each part."""

    def page(self, part: str) -> str:
        """What Prometheus would read there now."""
        answer = httpx.get(f"http://{self.targets[part]}/metrics", headers=ASKED, timeout=20)
        assert answer.status_code == 200
        return answer.text


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedMesh]:
    """One prefill and one decode worker; prompts of two blocks and more are prefilled remotely."""
    folder = tmp_path_factory.mktemp("observed")
    arguments = ["--model", str(DEMO), "--no-sample", "--remote-prefill-min-tokens", "17"]
    # On busy cores, an answer of the index may take longer than a router would wait for it.
    arguments += ["--lookup-timeout", "5"]
    with running_mesh(folder, *arguments) as mesh:
        mesh.wait_until_complete()
        config = GatewayConfig(
            routers=(f"127.0.0.1:{option(mesh.parts()['router'], '--port')}",),
            port=free_port(),
            metrics_port=free_port(),
            local_socket=str(folder / "local.sock"),
            grace_period=0.0,
        )
        command = [sys.executable, "-m", "pagemesh.cli", "gateway", *to_arguments(config)]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            ready = http_answers(folder / "local.sock", "/health", 200)
            asyncio.run(asyncio.wait_for(ready, 30))
            observed = ObservedMesh(mesh, config)
            yield observed
            observed.load.close()
        finally:
            process.terminate()
            process.wait(10)


@pytest.fixture(scope="module")
def loaded(observed: ObservedMesh) -> ObservedMesh:
    """The same, when it has had some of everything."""
    observed.load.run()
    return observed
