"""What oneDNN keeps for batches of all sizes stays small; in a process of its own, as torch asks for that once."""

from __future__ import annotations

import os
import subprocess
import sys

from pagemesh.engine_process.environment import BOUNDED_CACHES

PROGRAM = """
import psutil, torch

torch.set_num_threads(1)
pack = torch.ops.mkldnn._reorder_linear_weight
layers = [pack(torch.randn(256 + 64 * i, 128), 64) for i in range(4)]
inputs = torch.randn(300, 128)

def compute(sizes):
    for size in sizes:
        for layer in layers:
            torch.ops.mkldnn._linear_pointwise(inputs[:size], layer, None, "none", [], "")

with torch.inference_mode():
    compute(range(2, 102))
    before = psutil.Process().memory_info().rss
    compute(range(102, 302))
print((psutil.Process().memory_info().rss - before) >> 20)
"""


def growth_mib(environment: dict[str, str]) -> int:
    """By 800 products of shapes that never came before, behind 400 others."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return int(done.stdout)


def test_shapes_that_do_not_come_back_are_forgotten() -> None:
    # About 20, and 300 without the bound.
    assert growth_mib(dict(BOUNDED_CACHES)) < 100
