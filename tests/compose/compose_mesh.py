"""A mesh that compose keeps up, under a name and on ports of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tests.compose.container_engine import ContainerEngine, run
from tests.hygiene.tree import ROOT

_HEALTHY_DEADLINE_S: Final = 180.0


class ComposeMesh:
    """docker-compose.yml, with overlays."""

    def __init__(
        self,
        engine: ContainerEngine,
        overlays: Sequence[str] = (),
        variables: dict[str, str] | None = None,
    ) -> None:
        compose = engine.compose
        assert compose is not None, "asked for with an engine that has compose"
        self.engine = engine
        self.port = _free_port()
        self.project = f"pagemesh-test-{secrets.token_hex(4)}"
        files = ["docker-compose.yml", *(f"deploy/compose/{overlay}.yml" for overlay in overlays)]
        self._command = [
            *compose,
            "--project-name",
            self.project,
            *(w for f in files for w in ("--file", f)),
        ]
        self.environment = {
            **engine.environment,
            **(variables or {}),
            "PAGEMESH_PORT": str(self.port),
        }

    def compose(self, *arguments: str, timeout: float = 300) -> str:
        """Its output; AssertionError when it fails."""
        return run([*self._command, *arguments], self.environment, timeout, cwd=ROOT)

    def container(self, service: str) -> str:
        """The id of a service's container."""
        return self.compose("ps", "--quiet", service).strip()

    def inspect(self, service: str) -> dict[str, Any]:
        """All that the engine says of it."""
        described: dict[str, Any] = json.loads(self.engine.run("inspect", self.container(service)))[
            0
        ]
        return described

    def execute(self, service: str, *command: str) -> str:
        """What a program in a container prints; AssertionError when it fails."""
        return self.engine.run("exec", self.container(service), *command, timeout=60)

    def kill(self, service: str) -> None:
        """Have its process die as in a crash: whatever ends a container by the engine is taken for a wish."""
        os.kill(self.inspect(service)["State"]["Pid"], signal.SIGKILL)

    def wait_until_healthy(self, *services: str) -> None:
        """Of those, or all that were started; who has no health check is, and who was to end has."""
        deadline = time.monotonic() + _HEALTHY_DEADLINE_S
        for service in services or self.services():
            while (health := self._health(service)) != "healthy":
                assert time.monotonic() < deadline, f"{service} is {health}:\n{self.logs(service)}"
                time.sleep(0.5)

    def _health(self, service: str) -> str:
        described = self.inspect(service)
        state = described["State"]
        if not state["Running"]:
            is_done = described["HostConfig"]["RestartPolicy"]["Name"] in ("", "no")
            return "healthy" if is_done and state["ExitCode"] == 0 else "not running"
        return str(state["Health"]["Status"]) if "Health" in state else "healthy"

    def services(self) -> list[str]:
        """That have a container."""
        return [name for name in self.compose("ps", "--services").split() if self.container(name)]

    def logs(self, *services: str) -> str:
        """The last lines that they wrote."""
        return self.compose("logs", "--no-color", "--tail", "40", *services)


def _free_port() -> int:
    # Held by nobody: the engine's proxy listens there, and shares it with nobody.
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def compose_mesh(
    engine: ContainerEngine,
    overlays: Sequence[str] = (),
    variables: dict[str, str] | None = None,
    services: Sequence[str] = (),
) -> Iterator[ComposeMesh]:
    """Built, up and healthy, all or the named services with what they need; gone at the end, with its volumes."""
    mesh = ComposeMesh(engine, overlays, variables)
    try:
        mesh.compose("build", timeout=1200)
        mesh.compose("up", "--detach", *services, timeout=300)
        mesh.wait_until_healthy()
        yield mesh
    finally:
        mesh.compose("down", "--volumes", "--timeout", "5")
