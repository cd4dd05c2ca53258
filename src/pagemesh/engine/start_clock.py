"""Where the time of an engine's start goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

Phase = Literal["read", "compile", "measure", "capture"]
"""Weights that are read, on a CPU packed and tried as well; the first steps on a GPU, for which kernels are compiled
or taken from disk; steps whose time and memory are measured; steps that are captured as CUDA graphs."""


class StartClock:
    """Counts seconds by phase. What lies between phases (streams, the KV cache, checks) is in none."""

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {}

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Add what happens meanwhile to a phase; phases do not contain each other."""
        started_at = perf_counter()
        try:
            yield
        finally:
            passed = perf_counter() - started_at
            self.seconds[phase] = self.seconds.get(phase, 0.0) + passed
