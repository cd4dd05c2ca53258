"""The link as a test has it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.link.faults import Fault

ROOT = Path(__file__).resolve().parents[3]


class RunningLink:
    """A link process, told what to do and asked what it did."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        addresses = self._read()
        self.grpc_address: str = addresses["grpc"]
        """Spoils KV streams."""
        self.tcp_address: str = addresses["tcp"]
        """Passes on bytes, so that both ends share one gRPC connection through it."""

    def arm(self, *faults: Fault) -> None:
        """Have the next streams go wrong, one fault each."""
        for fault in faults:
            self._tell(do="arm", fault=fault.to_json())

    def plan(self, seed: int, share: float, longest_stall: float) -> None:
        """From now on, such a share of the streams goes wrong, by chance."""
        self._tell(do="plan", seed=seed, share=share, longest_stall=longest_stall)

    def swallow(self, swallows: bool, relay: str = "tcp") -> None:
        """Begin or end to swallow everything both ways; at the end, connections break."""
        self._tell(do="swallow", swallows=swallows, relay=relay)

    def counts(self) -> dict[str, int]:
        """Faults done so far, by kind."""
        return dict(self._tell(do="count")["counts"])

    def _tell(self, **command: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the link ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running_link(upstream: str) -> Iterator[RunningLink]:
    """A link to the worker at host:port; ended at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.link", upstream],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield RunningLink(process)
        finally:
            process.kill()
