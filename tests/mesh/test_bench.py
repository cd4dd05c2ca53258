"""`pagemesh bench serve` asks a whole mesh, and its figures are the mesh's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mesh.conftest import DEMO
from tests.mesh.harness import Mesh

pytestmark = pytest.mark.costly


class Measured(NamedTuple):
    """What the command came to."""

    exit_code: int
    out: str
    err: str
    figures: dict[str, Any]


def bench(url: str, folder: Path, *arguments: str) -> Measured:
    """The real command; it never shows a traceback."""
    words = [sys.executable, "-P", "-m", "pagemesh.cli", "bench", "serve", "--base-url", url]
    words += ["--tokenizer", str(DEMO), "--save-result", "--result-dir", str(folder)]
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
    done = subprocess.run(
        [*words, *arguments], capture_output=True, text=True, timeout=120, env=environment
    )
    assert "Traceback" not in done.stdout + done.stderr
    files = list(folder.glob("*.json"))
    figures = json.loads(files[0].read_text()) if files else {}
    return Measured(done.returncode, done.stdout, done.stderr, figures)


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_every_token_that_was_asked_for_is_counted(
    backend: str, mesh: Mesh, tmp_path: Path
) -> None:
    before = mesh.metric("router", "vllm:generation_tokens_total")
    lengths = ["--random-input-len", "24", "--random-output-len", "6", "--num-prompts", "8"]
    found = bench(mesh.url, tmp_path, "--backend", backend, *lengths, "--request-rate", "20")
    figures = found.figures
    assert found.exit_code == 0, found.err
    assert (figures["completed"], figures["failed"]) == (8, 0)
    assert figures["model_id"] == "demo"
    assert figures["total_output_tokens"] == 48
    if backend == "openai":
        assert figures["total_input_tokens"] == 192, "prompts are as long as they were made"
    # One more was sent beforehand.
    assert mesh.metric("router", "vllm:generation_tokens_total") - before == 49
    # Tokens that wait for a router come in one message: the first one may be the last.
    assert 0 < figures["median_ttft_ms"] <= figures["median_e2el_ms"]


def test_a_model_that_the_mesh_does_not_serve_is_one_sentence(mesh: Mesh, tmp_path: Path) -> None:
    found = bench(mesh.url, tmp_path, "--model", "none")
    assert found.exit_code == 1
    assert found.err.startswith(f"pagemesh bench serve: {mesh.url}/v1/completions answers 404:")
    assert found.err.count("\n") == 1
