"""Workers of the demo model as processes of their own, to be frozen and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import httpx

from pagemesh.local.processes import bound_to
from pagemesh.v1 import types_pb2
from tests.support.metrics import metric, num_used_blocks
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models/demo"
START_DEADLINE_S = 90.0
PRINT_PAGE = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
"""


class WorkerProcess:
    """One worker that can be killed and started again at its address. Its log is a file."""

    def __init__(
        self,
        role: str,
        worker_id: str,
        log: Path,
        *arguments: str,
        host: str = "127.0.0.1",
        namespace: str | None = None,
    ) -> None:
        """`namespace` is that of the network in which it runs and has the address `host`."""
        self.worker_id = worker_id
        self._role = role
        self._arguments = arguments
        self._log = log
        self._host = host
        self._enter = ["ip", "netns", "exec", namespace] if namespace is not None else []
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._facts: dict[str, Any] = {}

    def start(self) -> Self:
        """Start it; `wait_until_serving` follows. It dies with the thread that calls this."""
        command = [*self._enter, sys.executable, "-P", "-m", "pagemesh.cli", self._role]
        command += ["--model", str(DEMO)]
        command += ["--worker-id", self.worker_id]
        command += ["--host", self._host, "--port", str(self._port)]
        command += ["--metrics-port", "0", "--threads", "1", *self._arguments]
        with self._log.open("w") as stderr:
            self._process = subprocess.Popen(
                bound_to(os.getpid(), tuple(command)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        return self

    def wait_until_serving(self) -> Self:
        """Wait until it has loaded its model."""
        deadline = time.monotonic() + START_DEADLINE_S
        while not (lines := [line for line in self.lines() if line["event"] == "serving"]):
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)
        self._facts = lines[0]
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The one that serves; its engine is a child of it."""
        assert self._process is not None
        return self._process

    @property
    def address(self) -> str:
        """host:port, the same after a restart."""
        return f"{self._host}:{self._port}"

    def peer(self, address: str | None = None) -> types_pb2.PeerWorker:
        """The present incarnation, at its own address or at that of a link to it."""
        return types_pb2.PeerWorker(
            worker_id=self.worker_id,
            address=address or self.address,
            epoch=self._facts["epoch"],
        )

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far, without what is half written and what libraries print."""
        lines = self._log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line[-1] == "\n"]

    def logged(self) -> dict[str, str]:
        """Everything it said so far, by its name."""
        return {self.worker_id: self._log.read_text()}

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples over the labels that are not given."""
        return metric(self._metrics_page(), name, **labels)

    def _metrics_page(self) -> str:
        url = f"http://{self._facts['metrics_address']}/metrics"
        if not self._enter:
            return httpx.get(url, timeout=10).text
        command = [*self._enter, sys.executable, "-c", PRINT_PAGE, url]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=20
        ).stdout

    def num_used_blocks(self) -> int:
        """Blocks that requests or streams own."""
        return num_used_blocks(self._metrics_page())

    def freeze(self) -> None:
        """SIGSTOP: the process answers nothing, and its kernel still takes what it is sent."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; its engine ends with it."""
        self.process.kill()
        self.process.wait(10)


@contextmanager
def worker_processes(
    folder: Path,
    roles: dict[str, str],
    *arguments: str,
    own_arguments: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Iterator[list[WorkerProcess]]:
    """Workers by id and role, started at the same time; killed at the end.

    All get the arguments, and some, by their ids, more.
    """
    workers = [
        WorkerProcess(
            role,
            worker_id,
            folder / f"{worker_id}.log",
            *arguments,
            *own_arguments.get(worker_id, ()),
        )
        for worker_id, role in roles.items()
    ]
    with ExitStack() as stack:
        for worker in workers:
            worker.start()
            stack.callback(worker.kill)
        yield [worker.wait_until_serving() for worker in workers]
