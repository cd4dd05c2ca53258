"""A kvstore as a process of its own, to be frozen and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from pagemesh.local.processes import bound_to
from tests.support.metrics import metric

START_DEADLINE_S = 30.0


class KvStoreProcess:
    """One replica on a free port. Its log is a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        command = (sys.executable, "-P", "-m", "pagemesh.cli", "kvstore", "--metrics-port", "0")
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                bound_to(os.getpid(), (*command, *arguments)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while not (serving := [line for line in self.lines() if line["event"] == "serving"]):
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        self.address: str = serving[0]["address"]
        self._metrics_url = f"http://{serving[0]['metrics_address']}/metrics"

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far, without what is half written."""
        lines = self._log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def metric(self, name: str) -> float:
        """Sum of a metric's samples."""
        return metric(httpx.get(self._metrics_url, timeout=10).text, name)

    def freeze(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        self._process.kill()
        self._process.wait(10)


@contextmanager
def kvstore_process(log: Path, *arguments: str) -> Iterator[KvStoreProcess]:
    """A kvstore that is killed at the end."""
    process = KvStoreProcess(log, *arguments)
    try:
        yield process
    finally:
        process.kill()
