"""Few bits lose no more of a text than they may, measured anew: two windows of what the benchmark scores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_perplexity_table import assert_little_is_lost, figures
from tests.hygiene.tree import ROOT
from tests.support.smollm2 import smollm2_installed


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_few_bits_lose_little_now(tmp_path: Path) -> None:
    report = tmp_path / "perplexity.json"
    script = ROOT / "benchmarks/perplexity.py"
    with smollm2_installed():
        subprocess.run(
            [sys.executable, script, "--quick", "--json", report], check=True, timeout=550
        )
    assert_little_is_lost(figures(report))
