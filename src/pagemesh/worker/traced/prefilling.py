"""What spans are told of prompts that are prefilled for others."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import grpc

from pagemesh.rpc.channels import Behavior
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.spans import current_span
from pagemesh.v1 import prefill_pb2


def traced_prefill(
    behavior: Behavior[prefill_pb2.PrefillRequest],
) -> Behavior[prefill_pb2.PrefillRequest]:
    """What serves Prefill, and tells the present span what is asked for."""

    def serve(
        request: prefill_pb2.PrefillRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[bytes]:
        num_tokens = len(request.prompt_token_ids)
        span = current_span()
        span.set({names.INPUT_TOKENS: num_tokens})
        # What a cache had of them is taken off when the first token tells.
        span.add({names.KV_COMPUTED: num_tokens})
        return behavior(request, context)

    return serve
