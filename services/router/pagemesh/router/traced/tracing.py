"""All parts of the router that spans are told of, wrapped."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pagemesh.router.embedding.vectors import PromptEmbedder
from pagemesh.router.generation.interface import TextGenerator
from pagemesh.router.placer import Placer
from pagemesh.router.traced.calls import TracedCalls
from pagemesh.router.traced.generating import TracedEmbedder, TracedGenerator
from pagemesh.router.traced.placing import TracedPlacer
from pagemesh.router.tracing import Tracing
from pagemesh.telemetry.tracer import Traces


class SpanTracing(Tracing):
    """One span for each request of a client, with its decisions and what came of them."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        self._calls = TracedCalls(traces.tracer)

    def around(self, method: str) -> AbstractContextManager[object]:
        return self._calls.around(method)

    def placer(self, placer: Placer) -> Placer:
        return TracedPlacer(placer, self._traces.tracer)

    def generator(self, model_name: str, generator: TextGenerator) -> TextGenerator:
        return TracedGenerator(generator, model_name)

    def embedder(self, model_name: str, embedder: PromptEmbedder) -> PromptEmbedder:
        return TracedEmbedder(embedder, model_name)

    def close(self) -> None:
        self._traces.close()
