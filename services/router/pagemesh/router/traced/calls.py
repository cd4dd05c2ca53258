"""A span for each call of a client that asks for tokens or vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pagemesh.rpc.call_context import current_call
from pagemesh.rpc.call_spans import call_span
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.otlp import OtlpTracer
from pagemesh.telemetry.trace_context import NO_TRACE

_OPERATIONS: Final = {
    "/pagemesh.v1.OpenAI/ChatCompletions": "chat",
    "/pagemesh.v1.OpenAI/Responses": "chat",
    "/pagemesh.v1.Anthropic/Messages": "chat",
    "/pagemesh.v1.OpenAI/Completions": "text_completion",
    "/pagemesh.v1.OpenAI/Embeddings": "embeddings",
    "/pagemesh.v1.OpenAI/Score": "embeddings",
    "/pagemesh.v1.OpenAI/Rerank": "embeddings",
    "/pagemesh.v1.Inference/Generate": "text_completion",
    "/pagemesh.v1.Inference/Embed": "embeddings",
    "/pagemesh.v1.Inference/Score": "embeddings",
    "/pagemesh.v1.Inference/Rerank": "embeddings",
}
"""Names of the semantic conventions; other calls have no spans."""


class TracedCalls:
    """What goes around the calls of the router's server."""

    def __init__(self, tracer: OtlpTracer) -> None:
        self._tracer = tracer

    @contextmanager
    def around(self, method: str) -> Iterator[None]:
        """Within the block, the task works for the span: logs and further calls carry its trace."""
        operation, trace = _OPERATIONS.get(method), current_call().trace
        if operation is None or (trace != NO_TRACE and not trace.is_sampled):
            yield
            return
        attributes = {names.OPERATION: operation, names.PROVIDER: "pagemesh"}
        # Which model is only known when the body has been read.
        with call_span(self._tracer, operation, attributes):
            yield
