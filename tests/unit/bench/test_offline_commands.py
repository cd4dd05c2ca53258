"""`pagemesh bench throughput` and `latency` on the demo model, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.costly

DEMO = Path(__file__).resolve().parents[3] / "models/demo"


def bench(command: str, tmp_path: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """What it prints, and what its file has."""
    file = tmp_path / "figures.json"
    words = [sys.executable, "-P", "-m", "pagemesh.cli", "bench", command, "--model", str(DEMO)]
    words += ["--threads", "1", "--output-json", str(file), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(file.read_text())
    return done.stdout, figures


def test_throughput_answers_all_prompts_in_full(tmp_path: Path) -> None:
    lengths = ["--num-prompts", "6", "--input-len", "20", "--output-len", "7", "--n", "2"]
    printed, figures = bench("throughput", tmp_path, *lengths)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (120, 84)
    assert figures["num_requests"] == 6
    assert figures["requests_per_second"] == pytest.approx(6 / figures["elapsed_time"])
    assert figures["tokens_per_second"] == pytest.approx(204 / figures["elapsed_time"])
    assert printed.startswith(f"Throughput: {figures['requests_per_second']:.2f} requests/s")


def test_latency_takes_the_time_of_whole_batches(tmp_path: Path) -> None:
    lengths = ["--num-iters", "3", "--num-iters-warmup", "1", "--batch-size", "2"]
    printed, figures = bench("latency", tmp_path, *lengths, "--output-len", "5")
    times = sorted(figures["latencies"])
    assert len(times) == 3
    assert figures["avg_latency"] == pytest.approx(sum(times) / 3)
    assert figures["percentiles"]["50"] == pytest.approx(times[1])
    assert f"50% percentile latency: {times[1]:.4f} seconds" in printed
