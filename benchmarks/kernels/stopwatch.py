"""Times of operations on a CPU or a GPU, round by round, so that a noisy moment disturbs all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import torch

Run = Callable[[], object]

_FLUSH_BYTES: Final = 1 << 29
"""More than any cache: read before each run on a GPU, so that it begins with nothing at hand, and long enough
that the host is ahead when the run starts. What is written would have to leave the cache in the timed run."""

_BUDGET_S: Final = 2.0
"""A contest of slow runs gets fewer rounds."""


@torch.inference_mode()
def times(runs: Mapping[str, Run], device: torch.device, num_rounds: int) -> dict[str, list[float]]:
    """Microseconds of each run in each round; the first two rounds are not counted."""
    watch = _CudaWatch(device) if device.type == "cuda" else _CpuWatch()
    prepared = {name: watch.prepare(run) for name, run in runs.items()}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    started = time.perf_counter()
    for number in range(num_rounds + 2):
        for name, run in prepared.items():
            taken = watch.time(run)
            if number >= 2:
                samples[name].append(taken)
        if number >= 4 and time.perf_counter() - started > _BUDGET_S:
            break
    return samples


class _CpuWatch:
    def prepare(self, run: Run) -> Run:
        return run

    def time(self, run: Run) -> float:
        started = time.perf_counter()
        run()
        return (time.perf_counter() - started) * 1e6


class _CudaWatch:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flushed = torch.zeros(_FLUSH_BYTES // 4, device=device)
        self._sum = torch.empty((), device=device)
        self._events = [torch.Event(device, enable_timing=True) for _ in range(2)]

    def prepare(self, run: Run) -> Run:
        """As a graph, which takes the host no time for each kernel; as it is where that cannot be."""
        run()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                run()
        except RuntimeError:
            torch.cuda.synchronize(self._device)
            return run
        return graph.replay

    def time(self, run: Run) -> float:
        begin, end = self._events
        torch.sum(self._flushed, dim=0, out=self._sum)
        begin.record()
        run()
        end.record()
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds * 1e3
