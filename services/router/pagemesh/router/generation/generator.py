"""Starts generations: the entry to the generation path for every service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pagemesh.errors import UnavailableError
from pagemesh.router.generation.generation import Generation
from pagemesh.router.generation.instrumented import GenerationMetrics, InstrumentedGeneration
from pagemesh.router.generation.request import GenerationRequest
from pagemesh.router.planner import Planner
from pagemesh.telemetry.metrics import REQUESTS_RESUBMITTED, Metrics
from pagemesh.tokenizer.tokenizer import Tokenizer


class Generator:
    """Runs requests for one model."""

    def __init__(
        self, model_name: str, planner: Planner, tokenizer: Tokenizer, metrics: Metrics
    ) -> None:
        self._planner = planner
        self._tokenizer = tokenizer
        self._metrics = GenerationMetrics(metrics, model_name)
        self._resubmitted = metrics.counter(REQUESTS_RESUBMITTED)
        self._running: set[Generation] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def start(self, request: GenerationRequest) -> Iterator[InstrumentedGeneration]:
        """A generation whose workers are told to stop when the block is left, whatever happened."""
        inner = Generation(request, self._planner, self._tokenizer, self._resubmitted)
        generation = InstrumentedGeneration(inner, request, self._metrics)
        self._running.add(inner)
        self._idle.clear()
        try:
            yield generation
        finally:
            generation.close()
            self._running.discard(inner)
            if not self._running:
                self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Give running generations this long, then fail the rest.

        Their clients are told so: behind the gateway, a cancelled stream looks like a complete one.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            for generation in self._running:
                generation.fail(UnavailableError("the router is stopping", reason="DRAINING"))
