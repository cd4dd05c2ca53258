"""How long a host takes to start a step's kernels is measured where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.costly

ROOT = Path(__file__).resolve().parents[3]


def test_kernels_are_counted_and_timed(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, "benchmarks/gpu_host.py", "--quick", "--json", str(path)]
    # As the documents say, with no path but Python's own.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=170)
    figures = {each["name"]: each["value"] for each in json.loads(path.read_text())["figures"]}
    # Of 32 layers 6 kernels each, and the first norm and the last.
    assert figures["64 decodes: kernels until sampled"] == 194
    # Of chunks, attention's are others than of decodes.
    assert figures["64 decodes + 128 tokens: kernels until sampled"] == 226
    assert "64 decodes + 128 tokens, as a graph: host until launched" in figures
    assert all(value > 0 for value in figures.values())
