"""Starts generations: the entry to the generation path for every service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pagemesh.router.generation.generation import Generation
from pagemesh.router.generation.instrumented import GenerationMetrics, InstrumentedGeneration
from pagemesh.router.generation.request import GenerationRequest
from pagemesh.router.in_progress import InProgress
from pagemesh.router.planner import Placer
from pagemesh.telemetry.metrics import REQUESTS_RESUBMITTED, Metrics
from pagemesh.tokenizer.tokenizer import Tokenizer


class Generator:
    """Runs requests for one model."""

    def __init__(
        self,
        model_name: str,
        planner: Placer,
        tokenizer: Tokenizer,
        metrics: Metrics,
        in_progress: InProgress,
    ) -> None:
        self._planner = planner
        self._tokenizer = tokenizer
        self._metrics = GenerationMetrics(metrics, model_name)
        self._resubmitted = metrics.counter(REQUESTS_RESUBMITTED)
        self._in_progress = in_progress

    @contextmanager
    def start(self, request: GenerationRequest) -> Iterator[InstrumentedGeneration]:
        """A generation whose workers are told to stop when the block is left, whatever happened."""
        inner = Generation(request, self._planner, self._tokenizer, self._resubmitted)
        generation = InstrumentedGeneration(inner, request, self._metrics)
        with self._in_progress.hold(inner):
            try:
                yield generation
            finally:
                generation.close()
