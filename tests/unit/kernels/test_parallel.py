"""Threads of compiled functions are torch's own, and end when they are told to."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from pagemesh.kernels.jit import parallel
from pagemesh.kernels.jit.parallel import release_threads


def num_tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_threads_started_for_a_thread_can_be_ended() -> None:
    counts: list[int] = []

    def compute() -> None:
        counts.append(num_tasks())
        torch.set_num_threads(2)
        torch.ones(1 << 22).exp()
        counts.append(num_tasks())
        release_threads()
        counts.append(num_tasks())

    threads_before = torch.get_num_threads()
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    torch.set_num_threads(threads_before)
    before, computing, released = counts
    # torch keeps a thread of its own for other purposes.
    assert before <= released < computing


@pytest.mark.skipif(
    sys.platform != "linux", reason="only there processes list what they have loaded"
)
def test_torchs_library_is_taken_where_there_are_several() -> None:
    script = """
import sentencepiece, torch
from pagemesh.kernels.jit import parallel
copies = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
assert len(copies) == 2, copies
print(parallel._libgomp()._name)
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert Path(told.stdout.strip()).is_relative_to(Path(torch.__file__).parent)


def test_on_macos_the_library_is_llvms_beside_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = parallel._libgomp()
    assert library is not None
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    assert parallel._libgomp.__wrapped__() is None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libomp.dylib").symlink_to(library._name)
    found = parallel._libgomp.__wrapped__()
    assert found is not None
    assert hasattr(found, "GOMP_parallel")
