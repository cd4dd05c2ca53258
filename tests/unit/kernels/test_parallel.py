"""Threads of compiled functions are torch's own, and end when they are told to."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

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
