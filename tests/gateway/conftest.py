"""Real Envoy in front of a stand-in router."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from pagemesh.cli.arguments import to_arguments
from pagemesh.cli.up.readiness import http_answers
from pagemesh.config import GatewayConfig, HttpLimitsConfig
from pagemesh.rpc.identity import Identity
from tests.gateway.stand_in_router import StandInRouter
from tests.support.ports import free_port

MAX_BODY_MIB = 2


class Gateway(NamedTuple):
    """Where Envoy listens, and the router behind it."""

    address: str
    router: StandInRouter
    config: GatewayConfig
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http{'s' if self.config.tls.ssl_certfile else ''}://{self.address}"

    @property
    def admin_socket(self) -> Path:
        return Path(self.config.admin_socket or "")

    def log_entry(self, request_id: str) -> dict[str, Any]:
        """What the access log says of a request."""
        path = self.config.access_log or ""
        log = self.admin_socket.with_name("stdout") if path == "-" else Path(path)
        deadline = time.monotonic() + 20
        # Envoy writes its log when it has collected 64 kB, or after a moment.
        while time.monotonic() < deadline:
            lines = log.read_text().splitlines()
            entries = [json.loads(line) for line in lines if line.endswith("}")]
            for entry in entries:
                if entry["request_id"] == request_id:
                    return dict(entry)
            time.sleep(0.02)
        raise AssertionError(f"the access log has nothing about {request_id}")


def wait_for_status(
    url: str, status: int, deadline_s: float = 20.0, verify: ssl.SSLContext | bool = True
) -> None:
    deadline = time.monotonic() + deadline_s
    seen: object = None
    while time.monotonic() < deadline:
        try:
            seen = httpx.get(url, timeout=2, verify=verify).status_code
        except httpx.TransportError as error:
            seen = error
        if seen == status:
            return
        time.sleep(0.02)
    raise AssertionError(f"{url} gave {seen!r}, not {status}, for {deadline_s} s")


@pytest.fixture(scope="session")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One Envoy and router for all tests of a process that leave them as they are."""
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
def gateway(shared_gateway: Gateway) -> Gateway:
    """The same, whose router has told the test nothing yet."""
    shared_gateway.router.openai.forget()
    return shared_gateway


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[Gateway]:
    """An Envoy and router for one test, which may stop either."""
    with running_gateway(tmp_path) as running:
        yield running


@contextmanager
def running_gateway(
    folder: Path,
    router_identity: Identity | None = None,
    status: int = 200,
    other_routers: tuple[str, ...] = (),
    **settings: Any,
) -> Iterator[Gateway]:
    """Envoy and a router of its own, with fields of `GatewayConfig` that the test chooses.

    Its /health answers with `status` when it is up.
    """
    router = StandInRouter(free_port(), router_identity)
    router.set_serving(True)
    defaults: dict[str, Any] = {
        "routers": (router.address, *other_routers),
        "port": free_port(),
        "local_socket": str(folder / "local.sock"),
        "admin_socket": str(folder / "envoy.sock"),
        "access_log": str(folder / "access.jsonl"),
        "grace_period": 0.0,
        "limits": HttpLimitsConfig(max_body_size=MAX_BODY_MIB),
    }
    config = GatewayConfig(**{**defaults, **settings})
    command = [sys.executable, "-m", "pagemesh.cli", "gateway", *to_arguments(config)]
    with (folder / "stdout").open("wb") as stdout:
        environment = {**os.environ, "TMPDIR": str(folder)}
        process = subprocess.Popen(command, env=environment, stdout=stdout, start_new_session=True)
    running = Gateway(f"127.0.0.1:{config.port}", router, config, process)
    try:
        asyncio.run(asyncio.wait_for(http_answers(folder / "local.sock", "/health", status), 20))
        yield running
    finally:
        process.terminate()
        process.wait(10)
        router.stop()
