"""Whether and how the router's requests are traced: decided once, when it starts."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import Final

from pagemesh.config import RouterConfig
from pagemesh.router.embedding.vectors import PromptEmbedder
from pagemesh.router.generation.interface import TextGenerator
from pagemesh.router.placer import Placer

_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""OpenTelemetry's, the more special one first."""


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


def _from_environment() -> str | None:
    given = (os.environ.get(name) for name in _VARIABLES)
    return next((endpoint for endpoint in given if endpoint), None)


def start_tracing(config: RouterConfig) -> Tracing:
    """As the settings say; what spans need is loaded only where they are wanted."""
    endpoint = config.traces.otlp_traces_endpoint or _from_environment()
    if endpoint is None:
        return Tracing()
    from pagemesh.router.traced.tracing import SpanTracing
    from pagemesh.telemetry.otlp import OtlpTracer

    tracer = OtlpTracer(endpoint, "pagemesh-router", version("pagemesh"))
    return SpanTracing(tracer)
