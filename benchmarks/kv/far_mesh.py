"""A mesh whose processes are on machines of their own: router, kvstore and workers, each in a namespace."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import grpc
from kv.namespaces import Cable, Network
from members import members, metric
from mesh import START_DEADLINE_S

from pagemesh.local.processes import bound_to
from pagemesh.v1 import types_pb2

_PORT, _METRICS_PORT = 5001, 5002


class FarMesh:
    """Decode and prefill workers by name ("decode-0"), each with a thread, a router and a kvstore."""

    def __init__(self, model: Path, workers: Mapping[str, Cable]) -> None:
        self._model = str(model)
        self._workers = list(workers)
        self._network = Network(["kvstore", "router", *workers], dict(workers))
        self._log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed on exit
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._network.__enter__()
        try:
            self._start("kvstore", "kvstore")
            self._start("router", "router", "--model", self._model, "--kvstore", self.kvstore)
            for name in self._workers:
                self._start_worker(name)
            self._await_workers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def kvstore(self) -> str:
        """host:port of the kvstore."""
        return f"{self._network.address('kvstore')}:{_PORT}"

    @property
    def router(self) -> str:
        """host:port of the router."""
        return f"{self._network.address('router')}:{_PORT}"

    def worker(self, name: str) -> types_pb2.WorkerInfo:
        """A worker as the kvstore knows it."""
        return members(self.kvstore)[name]

    def metric(self, name: str, metric_name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels at a machine's process."""
        return metric(f"{self._network.address(name)}:{_METRICS_PORT}", metric_name, **labels)

    def log(self) -> str:
        """The end of what all processes said."""
        self._log.seek(0)
        return self._log.read()[-3000:]

    def _start_worker(self, name: str) -> None:
        role = name.partition("-")[0]
        flags = ["--kvstore", self.kvstore, "--worker-id", name, "--threads", "1"]
        flags += ["--kv-cache-memory", "1"]
        self._start(name, role, "--model", self._model, *flags)

    def _start(self, name: str, role: str, *flags: str) -> None:
        program = [sys.executable, "-P", "-m", "pagemesh.cli", role]
        address = ["--host", self._network.address(name), "--port", str(_PORT)]
        address += ["--metrics-port", str(_METRICS_PORT)]
        command = (*self._network.prefix(name), *program, *flags, *address)
        self._processes.append(
            subprocess.Popen(
                bound_to(os.getpid(), command),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
        )

    def _await_workers(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self._processes):
                break
            try:
                if set(members(self.kvstore)) >= set(self._workers):
                    return
            except grpc.RpcError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"the mesh did not come up:\n{self.log()}")

    def _stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._network.__exit__(None, None, None)
        self._log.close()
