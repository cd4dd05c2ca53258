"""Processes of a mesh, each started by itself: several routers beside each other, some that end and come back."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from members import members
from mesh import START_DEADLINE_S, free_port

from pagemesh.engine_process.environment import SLEEPING_THREADS
from pagemesh.local.processes import bound_to

_PROBE_S: Final = 2.0
_HOST: Final = "127.0.0.1"


class Processes:
    """By name: kvstore, routers and workers on this machine; killed on exit of the context."""

    def __init__(self, model: Path, *, threads: int = 1) -> None:
        """`threads` of each worker."""
        self._model = str(model)
        self._environment = os.environ | SLEEPING_THREADS | {"OMP_NUM_THREADS": str(threads)}
        self._commands: dict[str, tuple[str, ...]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, tuple[int, int]] = {}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed on exit

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self._running):
            self.kill(name)
        self._log.close()

    def start_kvstore(self, *flags: str) -> None:
        """The kvstore, of which there is one."""
        self._start("kvstore", "kvstore", *flags)

    def start_router(self, name: str, *flags: str) -> None:
        """A router; the kvstore's address is known by now."""
        kvstore = ("--kvstore", self.address("kvstore"))
        self._start(name, "router", "--model", self._model, *kvstore, *flags)

    def start_worker(self, name: str, *flags: str) -> None:
        """A worker; the part of its name before the dash is its role."""
        role = name.partition("-")[0]
        member = ("--kvstore", self.address("kvstore"), "--worker-id", name, "--threads", "1")
        self._start(name, role, "--model", self._model, *member, *flags)

    def kill(self, name: str) -> None:
        """End a process at once, as a crash does."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def launch(self, name: str) -> None:
        """Start a process that was killed again, at its old address."""
        self._running[name] = subprocess.Popen(
            bound_to(os.getpid(), self._commands[name]),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._environment,
        )

    def address(self, name: str) -> str:
        """host:port of the gRPC server of a process."""
        return f"{_HOST}:{self._ports[name][0]}"

    def metrics_address(self, name: str) -> str:
        """host:port of the metrics of a process."""
        return f"{_HOST}:{self._ports[name][1]}"

    def pid(self, name: str) -> int:
        """Process id of a running process."""
        return self._running[name].pid

    def await_serving(self, name: str) -> None:
        """Return when a process answers that it serves; RuntimeError with the logs if it never does."""
        deadline = time.monotonic() + START_DEADLINE_S
        with grpc.insecure_channel(self.address(name)) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)  # the stubs know no methods
            while time.monotonic() < deadline and self._running[name].poll() is None:
                try:
                    request = health_pb2.HealthCheckRequest()
                    answer = health.Check(request, timeout=_PROBE_S, wait_for_ready=True)
                except grpc.RpcError:
                    continue
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
                time.sleep(0.02)
        raise RuntimeError(f"{name} does not serve:\n{self.log()}")

    def await_members(self, names: Collection[str]) -> None:
        """Return when the kvstore knows these workers; RuntimeError with the logs if it never does."""
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            try:
                if set(members(self.address("kvstore"))) >= set(names):
                    return
            except grpc.RpcError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"the workers {sorted(names)} did not all come up:\n{self.log()}")

    def log(self) -> str:
        """The end of what all processes said."""
        self._log.seek(0)
        return self._log.read()[-3000:]

    def _start(self, name: str, role: str, *flags: str) -> None:
        port, metrics_port = self._ports[name] = (free_port(), free_port())
        address = ("--host", _HOST, "--port", str(port), "--metrics-port", str(metrics_port))
        program = (sys.executable, "-P", "-m", "pagemesh.cli", role)
        self._commands[name] = (*program, *flags, *address)
        self.launch(name)
