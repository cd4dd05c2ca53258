"""A span for each call of a client that asks for tokens or vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import grpc

from pagemesh.errors import PagemeshError
from pagemesh.rpc.call_context import bind_call, current_call
from pagemesh.rpc.status import as_pagemesh_error
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.otlp import OtlpTracer

_OPERATIONS: Final = {
    "/pagemesh.v1.OpenAI/ChatCompletions": "chat",
    "/pagemesh.v1.OpenAI/Completions": "text_completion",
    "/pagemesh.v1.OpenAI/Embeddings": "embeddings",
    "/pagemesh.v1.Inference/Generate": "text_completion",
    "/pagemesh.v1.Inference/Embed": "embeddings",
}
"""Names of the semantic conventions; other calls have no spans."""


class TracedCalls:
    """What goes around the calls of the router's server."""

    def __init__(self, tracer: OtlpTracer) -> None:
        self._tracer = tracer

    @contextmanager
    def around(self, method: str) -> Iterator[None]:
        """Within the block, the task works for the span: logs and further calls carry its trace."""
        operation = _OPERATIONS.get(method)
        if operation is None:
            yield
            return
        call = current_call()
        attributes = {
            names.OPERATION: operation,
            names.PROVIDER: "pagemesh",
        }
        # Which model is only known when the body has been read.
        with self._tracer.serve(operation, call.trace, attributes) as span:
            bind_call(replace(call, trace=span.trace))
            try:
                yield
            except (PagemeshError, grpc.aio.BaseError):
                # The span is told of the former; the latter says what was told already.
                raise
            except asyncio.CancelledError:
                span.set({names.ERROR_TYPE: "CANCELLED"})
                raise
            except Exception as error:
                span.fail(as_pagemesh_error(error))
                raise
