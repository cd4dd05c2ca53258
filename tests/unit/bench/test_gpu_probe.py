"""The measurements for a rented GPU run to their end where there is none, with sizes that fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.costly

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", ["limits", "draw", "kv", "memory", "quantised"])
def test_figures_are_written(name: str, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, "benchmarks/gpu_probe.py", name, "--toy", "--quick"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    subprocess.run(
        [*command, "--json", str(path)], cwd=ROOT, env=environment, check=True, timeout=120
    )
    report = json.loads(path.read_text())
    assert report["figures"]
    assert all(sample > 0 for figure in report["figures"] for sample in figure["samples"])
