"""A span for each call of a client that asks for tokens or vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Tracer

from pagemesh.rpc.spans import call_span
from pagemesh.telemetry import span_names as names

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

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def around(self, method: str) -> Iterator[None]:
        """Within the block, the task works for the span: logs and further calls carry its trace."""
        operation, caller = _OPERATIONS.get(method), trace.get_current_span().get_span_context()
        if operation is None or (caller.is_valid and not caller.trace_flags.sampled):
            yield
            return
        attributes = {names.OPERATION: operation, names.PROVIDER: "pagemesh"}
        # Which model is only known when the body has been read.
        with call_span(self._tracer, operation, attributes):
            yield
