"""The sending side of a stream: messages of leased blocks, made on threads and counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal

from opentelemetry import trace

from pagemesh.errors import DeadlineError, InvalidRequestError
from pagemesh.kv_transfer.endpoint import KvEndpoint
from pagemesh.kv_transfer.frames import KvPart, encode_frame
from pagemesh.kv_transfer.transports import SendingTransport
from pagemesh.rpc.call_context import current_call
from pagemesh.telemetry import span_names
from pagemesh.telemetry.metrics import transfer as declared
from pagemesh.v1 import kv_transfer_pb2, types_pb2


class KvSender:
    """Begins the streams of one RPC that a worker serves."""

    def __init__(self, endpoint: KvEndpoint, rpc: Literal["prefill", "fetch"]) -> None:
        self._endpoint = endpoint
        self._blocks_sent = endpoint.metrics.counter(declared.KV_BLOCKS_SENT).labels(rpc)
        self._bytes_sent = endpoint.metrics.counter(declared.KV_BYTES_SENT).labels(rpc)

    def begin(self, caller: kv_transfer_pb2.HostIdentity, stream_nonce: int) -> SentStream:
        """A stream to a caller that can read the memory of this host, if it names that.

        InvalidRequestError when the present call has no deadline: nobody's blocks are held without end.
        """
        trace.get_current_span().set_attribute(span_names.WORKER, self._endpoint.info.worker_id)
        deadline = current_call().deadline
        if deadline is None:
            raise InvalidRequestError(
                "the call has no deadline, but the worker's blocks are held for it until then",
                reason="NO_DEADLINE",
            )
        transport = self._endpoint.transports.sending_to(caller)
        encoder = KvEncoder(self._endpoint.info, transport, stream_nonce)
        return SentStream(self._endpoint, transport, encoder, deadline, self._count)

    def _count(self, part: KvPart) -> None:
        layout = self._endpoint.engine.info.layout
        if part.first_layer + part.num_layers == layout.num_layers:
            # Of a block that leaves in several parts, the last one.
            self._blocks_sent.inc(part.num_blocks)
        self._bytes_sent.inc(layout.num_bytes_of(part.num_blocks, part.num_layers))


class SentStream:
    """Encodes what one stream carries: parts of blocks that the caller holds by an export or a pin. Tells the present span."""

    def __init__(
        self,
        endpoint: KvEndpoint,
        transport: SendingTransport,
        encoder: KvEncoder,
        deadline: float,
        on_part: Callable[[KvPart], None],
    ) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._encoder = encoder
        self._deadline = deadline  # of the call, as loop time
        self._on_part = on_part
        self._span = trace.get_current_span()
        self._began_at = time.monotonic()
        self._num_bytes = 0

    @property
    def max_part_bytes(self) -> int:
        """Of KV that one part may have."""
        return self._transport.max_part_bytes

    def header(self, num_blocks: int) -> bytes:
        """The first message of a stream of so many blocks."""
        self._span.set_attributes({span_names.KV_BLOCKS: num_blocks, span_names.KV_BYTES: 0})
        return self._encoder.header(num_blocks)

    def first_token(self, first_token: kv_transfer_pb2.FirstToken) -> bytes:
        """The message of the first token."""
        self._span.add_event(span_names.FIRST_TOKEN)
        self._span.set_attributes(
            {
                span_names.TIME_TO_FIRST_TOKEN: time.monotonic() - self._began_at,
                span_names.KV_REUSED: first_token.reused_token_count,
                span_names.KV_RECEIVED: first_token.received_token_count,
            }
        )
        return self._encoder.first_token(first_token)

    def alive(self) -> bytes:
        """The message that tells nothing but that the engine answers."""
        return self._encoder.alive()

    async def part(
        self,
        part: KvPart,
        block_ids: Sequence[int],
        block_hashes: Sequence[bytes],
        *,
        ready_seconds: float,
        num_reused_tokens: int,
    ) -> bytes:
        """The message of one part, as `KvEncoder.part` makes it; cancelling waits for the copy's end."""
        message = await self._endpoint.block_threads.run(
            self._encoder.part, part, block_ids, block_hashes, ready_seconds, num_reused_tokens
        )
        self._on_part(part)
        layout = self._endpoint.engine.info.layout
        self._num_bytes += layout.num_bytes_of(part.num_blocks, part.num_layers)
        self._span.set_attribute(span_names.KV_BYTES, self._num_bytes)
        return message

    async def finish(self) -> None:
        """Return when the blocks may be given back, behind the last message.

        Where the receiver reads them itself, it cancels the call when it has, or the call's deadline does:
        then DeadlineError, unless gRPC is faster.
        """
        if self._transport.needs_blocks_until_cancelled:
            await asyncio.sleep(self._deadline - asyncio.get_running_loop().time())
            raise DeadlineError("the caller did not end the stream before its deadline")


class KvEncoder:
    """Makes the messages of one stream; any thread."""

    def __init__(
        self, worker: types_pb2.WorkerInfo, transport: SendingTransport, stream_nonce: int
    ) -> None:
        """`stream_nonce` is what the caller drew for the stream."""
        self._stamp = kv_transfer_pb2.KvStamp(
            model_fingerprint=worker.model_fingerprint,
            kv_layout=worker.kv_layout,
            arithmetic=worker.arithmetic,
            worker_id=worker.worker_id,
            epoch=worker.epoch,
            stream_nonce=stream_nonce,
        )
        self._transport = transport

    def header(self, num_blocks: int) -> bytes:
        """The first message of a stream of so many blocks."""
        header = kv_transfer_pb2.KvHeader(block_count=num_blocks)
        self._transport.announce(header)
        return encode_frame(kv_transfer_pb2.KvContent(stamp=self._stamp, header=header))

    def first_token(self, first_token: kv_transfer_pb2.FirstToken) -> bytes:
        """The message of the first token."""
        return encode_frame(kv_transfer_pb2.KvContent(stamp=self._stamp, first_token=first_token))

    def alive(self) -> bytes:
        """The message of a sender that has nothing else to send for a while."""
        alive = kv_transfer_pb2.KvAlive()
        return encode_frame(kv_transfer_pb2.KvContent(stamp=self._stamp, alive=alive))

    def part(
        self,
        part: KvPart,
        block_ids: Sequence[int],
        block_hashes: Sequence[bytes],
        ready_seconds: float,
        num_reused_tokens: int,
    ) -> bytes:
        """Read the blocks of one part and make its message.

        `block_ids` is the whole block table, `block_hashes` are those of its full blocks, which were there
        `ready_seconds` after the header was sent. KV of the prompt's first `num_reused_tokens` was not computed
        for this stream. Computes a checksum and copies memory, so it belongs on a
        thread, and the caller must hold the blocks until it ends.
        """
        end_block = part.first_block + part.num_blocks
        hashes = list(block_hashes[part.first_block : end_block])
        hashes += [b""] * (part.num_blocks - len(hashes))
        blocks = kv_transfer_pb2.KvBlocks(
            first_block_index=part.first_block,
            block_count=part.num_blocks,
            first_layer=part.first_layer,
            layer_count=part.num_layers,
            token_count=part.num_tokens,
            block_hashes=hashes,
            ready_seconds=ready_seconds,
            reused_token_count=num_reused_tokens,
        )
        payload = self._transport.load(blocks, part, block_ids[part.first_block : end_block])
        content = kv_transfer_pb2.KvContent(stamp=self._stamp, blocks=blocks)
        return encode_frame(content, payload)
