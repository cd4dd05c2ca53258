"""A mesh of real processes to measure: `pagemesh up` on a free port, with the demo model by default."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from report import ROOT

MODEL = ROOT / "models/demo"
START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 10.0
REQUEST_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Part:
    """One process of a mesh."""

    process: psutil.Process

    flags: Mapping[str, str]
    """Flag to value, as the process was started with; empty for the gateway and the supervisor."""

    @property
    def address(self) -> str:
        """host:port of its gRPC server."""
        return f"127.0.0.1:{self.flags['--port']}"


class Mesh:
    """`pagemesh up` as a context: started by the constructor, stopped by SIGTERM on exit.

    `await_ready` stands apart, so that a benchmark can time it.
    """

    def __init__(self, *flags: str, model: Path = MODEL) -> None:
        self.port = free_port()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed on exit
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pagemesh.cli", "up"),
                *("--model", str(model), "--port", str(self.port), "--no-sample", *flags),
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        parts = self.parts() if self._process.poll() is None else {}
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_DEADLINE_S)
        finally:
            for part in parts.values():
                if part.process.is_running():
                    part.process.kill()
            self._log.close()

    def await_ready(self) -> None:
        """Return when the mesh says that it can serve; RuntimeError with its log if it never does."""
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if is_healthy(self.port):
                return
            time.sleep(0.02)
        self._log.seek(0)
        raise RuntimeError(f"the mesh did not come up:\n{self._log.read()[-1000:]}")

    def parts(self) -> dict[str, Part]:
        """The processes by name: supervisor, gateway, router, kvstore, decode-0, decode-0 engine, …"""
        supervisor = psutil.Process(self._process.pid)
        parts = {"supervisor": Part(supervisor, {})}
        engines = []
        for child in supervisor.children(recursive=True):
            command = child.cmdline()
            if "pagemesh.cli" in command:
                role, *arguments = command[command.index("pagemesh.cli") + 1 :]
                flags = dict(pairwise(arguments))
                parts[flags.get("--worker-id", role)] = Part(child, flags)
            elif "pagemesh.engine_process.server" in command:
                engines.append(child)
            elif "envoy" in Path(command[0]).name:
                parts["gateway"] = Part(child, {})
            else:
                parts["gateway supervisor"] = Part(child, {})
        workers = {part.process.pid: name for name, part in parts.items()}
        return parts | {f"{workers[e.ppid()]} engine": Part(e, {}) for e in engines}

    def stream(self, path: str, body: Mapping[str, object]) -> Iterator[tuple[float, str]]:
        """POST and yield (time.perf_counter(), data) for every server-sent event as it arrives."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_DEADLINE_S)
        connection.request(
            "POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}: {response.read()!r}")
        for line in response:
            if line.startswith(b"data: {"):
                yield time.perf_counter(), line[6:].decode()
        connection.close()


def free_port() -> int:
    """A TCP port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_healthy(port: int) -> bool:
    """Whether an HTTP server on this machine says that it can answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
