"""Whether and how the router's requests are traced: decided once, when it starts."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from pagemesh.config import TracesConfig
from pagemesh.router.embedding.vectors import PromptEmbedder
from pagemesh.router.generation.interface import TextGenerator
from pagemesh.router.placer import Placer
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.tracer import start_traces


class Tracing:
    """Nothing is traced: all parts are used as they are."""

    def around(self, method: str) -> AbstractContextManager[object]:
        """What a call of a method is run in."""
        return nullcontext()

    def placer(self, placer: Placer) -> Placer:
        """The one to use."""
        return placer

    def generator(self, model_name: str, generator: TextGenerator) -> TextGenerator:
        """The one to use."""
        return generator

    def embedder(self, model_name: str, embedder: PromptEmbedder) -> PromptEmbedder:
        """The one to use."""
        return embedder

    def close(self) -> None:
        """Send what is left. May block for two seconds; idempotent."""


def start_tracing(config: TracesConfig, metrics: Metrics) -> Tracing:
    """As the settings say; what spans need is loaded only where they are wanted."""
    if config.endpoint is None:
        return Tracing()
    from pagemesh.router.traced.tracing import SpanTracing

    return SpanTracing(start_traces(config, "router", metrics))
