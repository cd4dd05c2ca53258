"""A mesh of any tree, from outside: its command line, its HTTP, its metrics pages, its logs and the spans that it sends.

Nothing of that tree is imported here, and nothing of this one there: the trees may differ in all their modules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from scripts.house import ROOT
from scripts.run_dump.left_out import Dump, left_out
from scripts.run_dump.readings import count_entries, counts
from scripts.run_dump.tree_only import sitecustomize
from tests.mesh.harness import Mesh, running_command, until, up_command
from tests.support.ports import free_port
from tests.support.trace_receiver import ReceivedSpan, TraceReceiver, running_receiver

MODEL: Final = "demo"
DECODERS: Final = ("decode-0", "decode-1")
PARTS: Final = ("router", "kvstore", "prefill-0", *DECODERS)
"""That have pages of metrics."""

SETTLE_S: Final = 1.3
"""From the end of an answer until nothing of it is left to do: the router remembers for a second what was about to be
cached."""
QUIET_S: Final = 0.4
"""Counters that stay for so long have been told all: workers report a change at once."""
SPANS_S: Final = 2.0
"""Likewise spans: processes send theirs every 0.1 s, but Envoy waits for some seconds."""
DEADLINE_S: Final = 60.0

_FLAGS: Final = (
    *("--model", str(ROOT / "models/demo"), "--no-sample", "--decode", "2"),
    *("--device", "cpu", "--threads", "3", "--seed", "7"),
    *("--log-level", "debug", "--enable-log-requests"),
    # What lacks more than a block is prefilled remotely, in small steps: it is sooner pulled than computed.
    *("--remote-prefill-min-tokens", "17", "--max-num-batched-tokens", "16", "--max-num-seqs", "4"),
    # However busy the cores are, the router waits for the index.
    *("--lookup-timeout", "10"),
)
_SHOW_PATH: Final = "import json, pagemesh; print(json.dumps(list(pagemesh.__path__)))"


class DumpedMesh:
    """A running mesh, and the spans that it sent so far."""

    def __init__(self, mesh: Mesh, receiver: TraceReceiver, folder: Path) -> None:
        self.mesh = mesh
        self.folder = folder
        self._receiver = receiver

    def wait_until_complete(self) -> None:
        """Wait until the router reaches all workers."""
        wanted = {"decode_workers": len(DECODERS), "prefill_workers": 1}
        until(lambda: self.mesh.health().items() >= wanted.items(), "the router reaches all")

    def pages(self) -> dict[str, str]:
        """All metrics of each part, once nothing is left to do for any request."""
        until(
            lambda: self.mesh.metric("router", "pagemesh:requests_in_progress") == 0,
            "the router has no request",
        )
        self.mesh.wait_until_idle()
        time.sleep(SETTLE_S)
        deadline = time.monotonic() + DEADLINE_S
        pages = self._pages()
        before: Dump = {}
        while (now := left_out(count_entries("any", {}, counts(pages)))) != before:
            if time.monotonic() > deadline:
                raise TimeoutError("counters never stay as they are")
            before = now
            time.sleep(QUIET_S)
            pages = self._pages()
        return pages

    def spans(self, trace_id: str) -> list[ReceivedSpan]:
        """Of one trace, so far."""
        return [span for span in self._receiver.spans if span.trace_id == trace_id]

    def wait_for_spans(self, trace_ids: Sequence[str]) -> None:
        """Wait until each trace has the gateway's span, which is sent last, and no further ones come."""
        until(
            lambda: all(
                any(
                    span.resource["service.name"] == "pagemesh-gateway" for span in self.spans(each)
                )
                for each in trace_ids
            ),
            "the gateway's spans",
        )
        deadline = time.monotonic() + DEADLINE_S
        number = -1
        while number != len(self._receiver.spans):
            if time.monotonic() > deadline:
                raise TimeoutError("spans come without end")
            number = len(self._receiver.spans)
            time.sleep(SPANS_S)

    def logs(self) -> dict[str, list[dict[str, Any]]]:
        """Lines of each part, by the names of the files; what is no JSON has an event and nothing else."""
        return {
            name: [
                _line(line.replace(str(self.folder), "<folder>"))
                for line in text.splitlines()
                if line
            ]
            for name, text in self.mesh.logged().items()
        }

    def _pages(self) -> dict[str, str]:
        return {part: self.mesh.metrics_page(part) for part in PARTS}


def _line(text: str) -> dict[str, Any]:
    if text.startswith("{"):
        return dict(json.loads(text))
    return {"event": text}


def package_roots(tree: Path) -> list[Path]:
    """Folders of a tree that have a part of the package."""
    tops = [tree / top for top in ("src", "gateway", "kernels", "tools")]
    roots = [*tops, *sorted((tree / "services").glob("*"))]
    return [root for root in roots if (root / "pagemesh").is_dir()]


def environment_of(tree: Path) -> dict[str, str]:
    """Of processes that import pagemesh from a tree and from nowhere else, and send spans at once."""
    foreign = ("PAGEMESH_", "OTEL_", "PYTHON")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    roots = package_roots(tree)
    hidden = [root for root in package_roots(ROOT) if root not in roots]
    folder = Path(sitecustomize.__file__).parent
    return {
        **clean,
        "PYTHONPATH": os.pathsep.join(map(str, [folder, *roots])),
        sitecustomize.VARIABLE: os.pathsep.join(map(str, hidden)),
        "PYTHONHASHSEED": "0",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


def check_imports(tree: Path, environment: Mapping[str, str]) -> None:
    """Raise RuntimeError unless such processes import pagemesh from the tree alone."""
    shown = subprocess.run(
        [sys.executable, "-P", "-c", _SHOW_PATH],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    if shown.returncode != 0:
        raise RuntimeError(f"{tree} has no package pagemesh: {shown.stderr}")
    wanted = {os.fspath(root / "pagemesh") for root in package_roots(tree)}
    if set(json.loads(shown.stdout)) != wanted:
        raise RuntimeError(f"pagemesh would be imported from {shown.stdout}")


@contextmanager
def dumped_mesh(tree: Path, folder: Path) -> Iterator[DumpedMesh]:
    """A mesh of a tree, which logs into the folder; gone afterwards."""
    environment = environment_of(tree)
    check_imports(tree, environment)
    port = free_port()
    flags = (*_FLAGS, "--port", str(port), "--log-dir", str(folder / "logs"))
    with running_receiver() as receiver:
        command = up_command(*flags, "--otlp-traces-endpoint", receiver.address)
        address = f"127.0.0.1:{port}"
        with running_command(command, address, folder, environment) as mesh:
            dumped = DumpedMesh(mesh, receiver, folder)
            dumped.wait_until_complete()
            yield dumped
