"""A decode worker with another tokenizer beside those of a mesh."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.mesh.harness import Mesh, option
from tests.support.metrics import metric
from tests.support.ports import free_port

DEMO = Path(__file__).resolve().parents[2] / "models/demo"


class OddWorker(NamedTuple):
    """The worker decode-odd."""

    metrics_port: int

    def num_generated(self) -> float:
        """Tokens of answers."""
        page = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5).text
        return metric(page, "vllm:generation_tokens_total")


def make_odd_demo(folder: Path) -> None:
    """The demo model with a tokenizer that knows fewer merges."""
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        (folder / name).symlink_to(DEMO / name)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder)
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    del tokenizer["model"]["merges"][100:]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@contextmanager
def running_odd_worker(mesh: Mesh, folder: Path, model_name: str) -> Iterator[OddWorker]:
    """With the model of a folder; started, but perhaps not in the mesh yet; ended at the end."""
    kvstore = option(mesh.parts()["decode-0"], "--kvstore")
    assert kvstore is not None
    port = free_port()
    command = [sys.executable, "-P", "-m", "pagemesh.cli", "decode", "--model", str(folder)]
    command += [
        "--served-model-name",
        model_name,
        "--kvstore",
        kvstore,
        "--worker-id",
        "decode-odd",
    ]
    command += ["--metrics-port", str(port), "--threads", "1", "--grace-period", "0.5"]
    process = subprocess.Popen(command)
    try:
        yield OddWorker(port)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise
