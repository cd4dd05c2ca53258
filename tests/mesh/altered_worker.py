"""A decode worker of its own beside those of a mesh, of which something was changed before it started."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import httpx

from tests.mesh.harness import Mesh, option, until
from tests.support.metrics import metric
from tests.support.ports import free_port

DEMO: Final = Path(__file__).resolve().parents[2] / "models/demo"

NOTHING: Final = ""

OLD_VERSION: Final = """
import pagemesh.rpc.process as process
told = process.package_version
process.package_version = lambda name: "0.0.1" if name == "pagemesh" else told(name)
process.contract_digest = lambda: "of-long-ago"
"""

FAST_CLOCK: Final = """
import time, types
import pagemesh.rpc.process as process
process.time = types.SimpleNamespace(time=lambda: time.time() + 5.0)
"""

FORGETFUL: Final = """
import pagemesh.membership.publisher as publisher
told = publisher.change_requests
publisher.change_requests = lambda changes: told(changes._replace(stored=[]))
"""
"""It never tells which blocks it stored."""

OTHER_ARITHMETIC: Final = f"""
import functools, os
import pagemesh.worker.process as process
os.environ["PYTHONPATH"] = {str(DEMO.parents[1])!r}
process.EngineProcess = functools.partial(process.EngineProcess, program="tests.support.other_arithmetic")
"""
"""Its engine computes otherwise, see there."""

_RUN: Final = "\nfrom pagemesh.cli.main import main\nraise SystemExit(main())\n"


class AlteredWorker:
    """One that runs."""

    def __init__(self, port: int, metrics_port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"

    def num_generated(self) -> float:
        """Tokens of answers."""
        return self.metric("vllm:generation_tokens_total")

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples over the labels that are not given."""
        return metric(httpx.get(self._metrics_url, timeout=5).text, name, **labels)


@contextmanager
def altered_worker(
    mesh: Mesh, worker_id: str, alteration: str, *arguments: str
) -> Iterator[AlteredWorker]:
    """It has loaded, and its kvstore has heard of it; ended at the end, when the mesh has forgotten it."""
    kvstore = option(mesh.parts()["prefill-0"], "--kvstore")
    assert kvstore is not None
    port, metrics_port = free_port(), free_port()
    command = [sys.executable, "-P", "-c", alteration + _RUN, "decode", "--model", str(DEMO)]
    command += ["--kvstore", kvstore, "--worker-id", worker_id, "--threads", "1"]
    command += ["--port", str(port), "--metrics-port", str(metrics_port), "--grace-period", "0.5"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([*command, *arguments], stderr=log, stdout=log)

        def has_settled() -> bool:
            assert process.poll() is None, said(log)
            text = said(log)
            return '"serving"' in text and ('"registered"' in text or '"kvstore_refused"' in text)

        try:
            until(has_settled, f"{worker_id} is in the mesh, or refused", 60)
            yield AlteredWorker(port, metrics_port)
        except BaseException:
            # What a failure is told with.
            print(f"--- {worker_id}", said(log), sep="\n")
            raise
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
                raise


def said(log: IO[str]) -> str:
    """What was logged so far, read without moving the place where the process goes on."""
    return os.pread(log.fileno(), 1_000_000, 0).decode(errors="replace")
