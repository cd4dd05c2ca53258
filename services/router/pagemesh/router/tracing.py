"""Whether the router's requests are traced: decided once, when it starts.

One span for each request of a client, with its decisions and what came of them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from pagemesh.config import TracesConfig
from pagemesh.router.embedding.vectors import PromptEmbedder
from pagemesh.router.generation.interface import TextGenerator
from pagemesh.router.placer import Placer
from pagemesh.router.traced.calls import TracedCalls
from pagemesh.router.traced.generating import TracedEmbedder, TracedGenerator
from pagemesh.router.traced.placing import TracedPlacer
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.spans import start_traces


class Tracing:
    """Wraps the parts that spans are told of; where none are made, all parts are used as they are."""

    def __init__(self, config: TracesConfig, metrics: Metrics) -> None:
        self._makes_spans = config.endpoint is not None
        self._traces = start_traces(config, "router", metrics)
        self._calls = TracedCalls(self._traces.tracer)

    def around(self, method: str) -> AbstractContextManager[object]:
        """What a call of a method is run in."""
        return self._calls.around(method) if self._makes_spans else nullcontext()

    def placer(self, placer: Placer) -> Placer:
        """The one to use."""
        return TracedPlacer(placer, self._traces.tracer) if self._makes_spans else placer

    def generator(self, model_name: str, generator: TextGenerator) -> TextGenerator:
        """The one to use."""
        return TracedGenerator(generator, model_name) if self._makes_spans else generator

    def embedder(self, model_name: str, embedder: PromptEmbedder) -> PromptEmbedder:
        """The one to use."""
        return TracedEmbedder(embedder, model_name) if self._makes_spans else embedder

    def close(self) -> None:
        """Send what is left. May block for two seconds; idempotent."""
        self._traces.close()
