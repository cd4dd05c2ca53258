"""Device times: of graphs that are replayed, and of work whose kernels are started one by one.

`HostClock` plays the same on a CPU, so that the cases can be run where there is no GPU.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import torch

from pagemesh.engine.accelerator import Accelerator, Graph

Run = Callable[[], object]

_ROUND_MS: Final = 2.0
"""A round is as many replays as take so long, so that the start of the first does not count."""

_SLEEP_CLOCKS: Final = 2_000_000_000
"""Of a second, about."""


class Clock(Protocol):
    """Times work on one stream of one device."""

    device: torch.device
    accelerator: Accelerator

    def capture(self, work: Run) -> Graph:
        """A graph of work, which ran twice before."""
        ...

    def replays_ms(self, graph: Graph, num_rounds: int, budget_s: float = 0.3) -> list[float]:
        """Milliseconds of one replay, by rounds; at least three of them."""
        ...

    def queued_ms(self, work: Run, sleep_s: float) -> float:
        """Milliseconds that work takes on the device which the host asked for while the device slept."""
        ...

    def between_ms(self, work: Run) -> float:
        """Milliseconds from the first to the last kernel of work, with what the host holds up."""
        ...

    def settle(self) -> None:
        """Wait for the device."""
        ...


class CudaClock:
    """By CUDA events on the stream of an accelerator."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.device = accelerator.device
        self.accelerator = accelerator

    def capture(self, work: Run) -> Graph:
        self.settle()
        with self.accelerator.computing():
            work()
            work()
        self.settle()

        def quiet() -> None:
            work()

        with self.accelerator.computing():
            graph = self.accelerator.capture(quiet)
        self.settle()
        return graph

    def replays_ms(self, graph: Graph, num_rounds: int, budget_s: float = 0.3) -> list[float]:
        self._timed(graph.replay, 1)
        once = self._timed(graph.replay, 1)
        count = max(1, min(50, round(_ROUND_MS / max(once, 1e-3))))
        samples: list[float] = []
        started = time.perf_counter()
        while len(samples) < num_rounds:
            samples.append(self._timed(graph.replay, count))
            if len(samples) >= 3 and time.perf_counter() - started > budget_s:
                break
        return samples

    def queued_ms(self, work: Run, sleep_s: float) -> float:
        with self.accelerator.computing():
            torch.cuda._sleep(int(sleep_s * _SLEEP_CLOCKS))  # type: ignore[no-untyped-call]
            return self._between(work, 1)

    def between_ms(self, work: Run) -> float:
        return self._timed(work, 1)

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)

    def _timed(self, work: Run, count: int) -> float:
        with self.accelerator.computing():
            return self._between(work, count)

    def _between(self, work: Run, count: int) -> float:
        begin, end = (_timed_event() for _ in range(2))
        begin.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / count


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class HostClock:
    """The processor's time, for trying the cases without a GPU."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.device = accelerator.device
        self.accelerator = accelerator

    def capture(self, work: Run) -> Graph:
        with self.accelerator.computing():
            work()

        def again() -> None:
            work()

        return self.accelerator.capture(again)

    def replays_ms(self, graph: Graph, num_rounds: int, budget_s: float = 0.3) -> list[float]:
        return [self.between_ms(graph.replay)]

    def queued_ms(self, work: Run, sleep_s: float) -> float:
        return self.between_ms(work)

    def between_ms(self, work: Run) -> float:
        started = time.perf_counter()
        with self.accelerator.computing():
            work()
        return (time.perf_counter() - started) * 1e3

    def settle(self) -> None:
        pass


@contextmanager
def forgetting() -> Iterator[None]:
    """Afterwards, memory that nobody has any more is the device's again."""
    try:
        yield
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
