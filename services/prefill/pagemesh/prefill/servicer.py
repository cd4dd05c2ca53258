"""Prefill.Prefill: a prompt becomes an export of the engine, the export a stream of KV messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc
from opentelemetry import trace

from pagemesh.core.kv import KvGrant
from pagemesh.core.request import EngineRequest, RequestOutput
from pagemesh.errors import InvalidRequestError
from pagemesh.kv_transfer.frames import KvPart, num_blocks_of
from pagemesh.kv_transfer.importer import KvImporter
from pagemesh.kv_transfer.sender import KvSender, SentStream
from pagemesh.messages import (
    logprobs_to_proto,
    prompt_from_proto,
    require_same_kv,
    sampling_from_proto,
)
from pagemesh.prefill.export import Export, SourcePull, has_source
from pagemesh.rpc.call_context import current_call
from pagemesh.telemetry import span_names
from pagemesh.v1 import kv_transfer_pb2, prefill_pb2
from pagemesh.worker.dispatcher import RequestEvent
from pagemesh.worker.worker import Worker

ALIVE_INTERVAL: Final = 2.0
"""Seconds without anything to send after which the receiver is told that the engine still answers. Several
fit into the time after which it gives up a sender."""


class PrefillServicer:
    """Sends each prompt's KV as it becomes ready. The lease of the blocks is the stream."""

    def __init__(self, worker: Worker, importer: KvImporter) -> None:
        self._worker = worker
        self._importer = importer
        self._sender = KvSender(worker, rpc="prefill")

    async def Prefill(  # noqa: N802  # the name of the RPC
        self,
        request: prefill_pb2.PrefillRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncGenerator[bytes]:
        """Header, then blocks and the first token, each as soon as it is there."""
        worker = self._worker
        num_tokens = len(request.prompt_token_ids)
        # What a cache has of them is taken off when the first token tells.
        trace.get_current_span().set_attributes(
            {span_names.INPUT_TOKENS: num_tokens, span_names.KV_COMPUTED: num_tokens}
        )
        engine_request = self._engine_request(request)
        num_held = request.held_token_count
        layout = worker.engine.info.layout
        stream = self._sender.begin(request.caller_host, request.stream_nonce)
        export = Export(layout, num_held, num_tokens, stream.max_part_bytes)
        pull = SourcePull(worker, self._importer, request, engine_request)

        def on_event(event: RequestEvent) -> None:
            if isinstance(event, KvGrant):
                pull.fill(event)
            else:
                export.on_event(event)

        worker.dispatcher.submit(engine_request, on_event)
        try:
            num_blocks = num_blocks_of(num_tokens, layout.block_size)
            num_blocks -= num_held // layout.block_size
            yield stream.header(num_blocks)
            async for message in self._ship(export, pull, stream):
                yield message
            await stream.finish()
        finally:
            # However the stream ended: what still runs is cancelled and the blocks are free.
            worker.dispatcher.forget(engine_request.request_id)
            pull.cancel()
            worker.engine.release(engine_request.request_id)

    def _engine_request(self, request: prefill_pb2.PrefillRequest) -> EngineRequest:
        worker = self._worker
        require_same_kv(
            worker.info, request.model_fingerprint, request.kv_layout, request.arithmetic
        )
        prompt = prompt_from_proto(request.prompt_token_ids, "prompt_token_ids")
        num_held = request.held_token_count
        if num_held % worker.info.kv_layout.block_size or num_held >= len(prompt):
            raise InvalidRequestError(
                f"held_token_count is {num_held}, but must be a multiple of the block size "
                f"and less than the prompt's {len(prompt)} tokens",
                param="held_token_count",
            )
        return EngineRequest(
            request_id=worker.dispatcher.unique_id(current_call().request_id),
            prompt_token_ids=prompt,
            sampling=sampling_from_proto(request.sampling),
            priority=request.priority,
            cache_salt=request.cache_salt,
            hold_blocks=True,
            await_kv=has_source(request),
        )

    async def _ship(
        self, export: Export, pull: SourcePull, stream: SentStream
    ) -> AsyncGenerator[bytes]:
        started_at = time.monotonic()
        while not export.is_shipped:
            item = export.next_item()
            num_reused = export.num_held_tokens + pull.num_pulled_tokens
            if isinstance(item, KvPart):
                yield await stream.part(
                    item,
                    export.block_ids,
                    export.block_hashes,
                    ready_seconds=export.ready_at - started_at,
                    num_reused_tokens=num_reused,
                )
            elif item is not None:
                num_computed = export.num_tokens - num_reused
                trace.get_current_span().set_attribute(span_names.KV_COMPUTED, num_computed)
                yield stream.first_token(_first_token(item, num_reused))
            elif not await _has_news(export):
                await self._worker.dispatcher.engine_answers()
                yield stream.alive()


async def _has_news(export: Export) -> bool:
    try:
        async with asyncio.timeout(ALIVE_INTERVAL):
            await export.wait()
    except TimeoutError:
        return False
    return True


def _first_token(output: RequestOutput, num_reused_tokens: int) -> kv_transfer_pb2.FirstToken:
    first_token = kv_transfer_pb2.FirstToken(
        token_id=output.token_ids[0],
        received_token_count=output.num_received_tokens,
        reused_token_count=num_reused_tokens,
    )
    if output.logprobs is not None:
        first_token.logprobs.CopyFrom(logprobs_to_proto(output.logprobs[0]))
    return first_token
