"""What spans are told of KV that this worker sends: how much, and when the first token was there."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pagemesh.kvship.parts import KvPart
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.spans import Span, current_span
from pagemesh.v1 import kv_transfer_pb2
from pagemesh.worker.interfaces import OutgoingStream, Sender


class TracedSender:
    """A `Sender` whose streams the present span is told of."""

    def __init__(self, inner: Sender, worker_id: str) -> None:
        """`worker_id` is the sender's."""
        self._inner = inner
        self._worker_id = worker_id

    def begin(self, caller: kv_transfer_pb2.HostIdentity, stream_nonce: int) -> OutgoingStream:
        span = current_span()
        span.set({names.WORKER: self._worker_id})
        stream = self._inner.begin(caller, stream_nonce)
        return TracedStream(stream, span) if span.is_recording else stream


class TracedStream:
    """An `OutgoingStream` that a span is told of."""

    def __init__(self, inner: OutgoingStream, span: Span) -> None:
        self._inner = inner
        self._span = span
        self._began_at = time.monotonic()

    @property
    def max_part_bytes(self) -> int:
        return self._inner.max_part_bytes

    def header(self, num_blocks: int) -> bytes:
        self._span.set({names.KV_BLOCKS: num_blocks, names.KV_BYTES: 0})
        return self._inner.header(num_blocks)

    def first_token(self, first_token: kv_transfer_pb2.FirstToken) -> bytes:
        self._span.event(names.FIRST_TOKEN, {})
        self._span.add({names.KV_COMPUTED: -first_token.reused_token_count})
        self._span.set(
            {
                names.TIME_TO_FIRST_TOKEN: time.monotonic() - self._began_at,
                names.KV_REUSED: first_token.reused_token_count,
                names.KV_RECEIVED: first_token.received_token_count,
            }
        )
        return self._inner.first_token(first_token)

    def alive(self) -> bytes:
        return self._inner.alive()

    async def part(
        self,
        part: KvPart,
        block_ids: Sequence[int],
        block_hashes: Sequence[bytes],
        *,
        ready_seconds: float,
        num_reused_tokens: int,
    ) -> bytes:
        message = await self._inner.part(
            part,
            block_ids,
            block_hashes,
            ready_seconds=ready_seconds,
            num_reused_tokens=num_reused_tokens,
        )
        self._span.add({names.KV_BYTES: self._inner.num_bytes(part)})
        return message

    def num_bytes(self, part: KvPart) -> int:
        return self._inner.num_bytes(part)

    async def finish(self) -> None:
        await self._inner.finish()
