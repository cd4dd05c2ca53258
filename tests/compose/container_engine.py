"""A container engine to test with: the one that is there, or Debian's, started for the tests where root may."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pagemesh.local.processes import bound_to

_START_DEADLINE_S: Final = 30.0


class ContainerEngine:
    """Docker's client, and compose in whichever version there is."""

    def __init__(self, docker: str, environment: Mapping[str, str]) -> None:
        self._docker = docker
        self.environment = dict(environment)
        if self._answers("buildx", "version"):
            self.environment |= {"DOCKER_BUILDKIT": "1", "COMPOSE_DOCKER_CLI_BUILD": "1"}
        else:
            self.environment |= {"DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}

    def _answers(self, *arguments: str) -> bool:
        done = subprocess.run(
            [self._docker, *arguments],
            env=self.environment,
            capture_output=True,
            timeout=30,
            check=False,
        )
        return done.returncode == 0

    def serves(self) -> bool:
        """Whether there is an engine behind the client."""
        return self._answers("info")

    @property
    def compose(self) -> list[str] | None:
        """The command; None where there is none."""
        if self._answers("compose", "version"):
            return [self._docker, "compose"]
        found = shutil.which("docker-compose")
        return None if found is None else [found]

    def run(self, *arguments: str, timeout: float = 300, input: bytes | None = None) -> str:
        """Docker's output; AssertionError with all that it said when it fails."""
        return run([self._docker, *arguments], self.environment, timeout, input=input)

    def logs(self, container: str) -> str:
        """What a container has written, to either output."""
        command = [self._docker, "logs", container]
        done = subprocess.run(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=True,
        )
        return done.stdout.decode(errors="replace")

    def has_image(self, name: str) -> bool:
        """Whether it is here, or could be pulled."""
        if self._answers("image", "inspect", name):
            return True
        try:
            self.run("pull", "--quiet", name, timeout=120)
        except (AssertionError, subprocess.TimeoutExpired):
            return False
        return True


def run(
    command: list[str],
    environment: Mapping[str, str],
    timeout: float,
    cwd: Path | None = None,
    input: bytes | None = None,
) -> str:
    """The standard output; AssertionError with all that was said when it fails."""
    done = subprocess.run(
        command,
        env=environment,
        cwd=cwd,
        input=input,
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    said = done.stderr.decode(errors="replace")
    assert done.returncode == 0, (
        f"{' '.join(command)}:\n{done.stdout.decode()[-4000:]}\n{said[-8000:]}"
    )
    return done.stdout.decode()


@contextmanager
def container_engine(folder: Path) -> Iterator[ContainerEngine | str]:
    """An engine that serves, or why there is none. One of its own keeps everything in `folder`."""
    clients = dict.fromkeys(
        found
        for found in (shutil.which("docker"), shutil.which("docker", path="/usr/bin"))
        if found
    )
    for client in clients:
        if (engine := ContainerEngine(client, os.environ)).serves():
            yield engine
            return
    daemon = shutil.which("dockerd")
    if not clients or daemon is None or os.geteuid() != 0:
        yield "no docker answers here, and root cannot start Debian's docker.io"
        return
    with _started(daemon, folder) as socket:
        engine = ContainerEngine(list(clients)[-1], {**os.environ, "DOCKER_HOST": socket})
        deadline = time.monotonic() + _START_DEADLINE_S
        while not engine.serves():
            if time.monotonic() > deadline:
                yield f"dockerd does not serve: {(folder / 'log').read_text()[-500:]}"
                return
            time.sleep(0.2)
        yield engine


@contextmanager
def _started(daemon: str, folder: Path) -> Iterator[str]:
    socket = f"unix://{folder}/docker.sock"
    places = (
        "--data-root",
        f"{folder}/data",
        "--exec-root",
        f"{folder}/exec",
        "--pidfile",
        f"{folder}/pid",
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            bound_to(os.getpid(), (daemon, "--host", socket, *places)), stdout=log, stderr=log
        )
    try:
        yield socket
    finally:
        process.terminate()
        process.wait(60)
        subprocess.run(
            ["umount", "--recursive", "--quiet", f"{folder}/data"], check=False, timeout=30
        )
        shutil.rmtree(folder, ignore_errors=True)
