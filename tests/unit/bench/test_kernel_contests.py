"""The contests of kernels: an aim only where the least time is long enough to say something."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[3] / "benchmarks/kernels/contest.py"


@pytest.mark.parametrize(
    ("least_us", "on_gpu", "aim"),
    [(49.0, True, None), (50.0, True, 0.8), (49.0, False, 0.8)],
)
def test_an_aim_needs_a_least_time_that_a_launch_does_not_spoil(
    monkeypatch: pytest.MonkeyPatch, least_us: float, on_gpu: bool, aim: float | None
) -> None:
    spec = importlib.util.spec_from_file_location("contest", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "contest", module)
    spec.loader.exec_module(module)
    contest = module.Contest("a", 1.0, 1.0, {}, aim=0.8)
    assert contest.aim_for(least_us, on_gpu=on_gpu) == aim
