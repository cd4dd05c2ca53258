"""Messages of leased blocks, made on threads and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pagemesh.kvship.encode import KvEncoder
from pagemesh.kvship.parts import KvPart
from pagemesh.telemetry import metrics as declared
from pagemesh.v1 import kv_transfer_pb2
from pagemesh.worker.worker import Worker


class KvSender:
    """Encodes what a worker sends: parts of blocks that the caller holds by an export or a pin."""

    def __init__(self, worker: Worker, rpc: Literal["prefill", "fetch"]) -> None:
        self._worker = worker
        self._encoder = KvEncoder(worker.info, worker.engine.kv)
        self._bytes_per_layer = worker.engine.info.layout.num_bytes_per_layer
        self._blocks_sent = worker.metrics.counter(declared.KV_BLOCKS_SENT).labels(rpc)
        self._bytes_sent = worker.metrics.counter(declared.KV_BYTES_SENT).labels(rpc)

    def header(self, num_blocks: int) -> bytes:
        """The first message of a stream of so many blocks."""
        return self._encoder.header(num_blocks)

    def first_token(self, first_token: kv_transfer_pb2.FirstToken) -> bytes:
        """The message of the first token."""
        return self._encoder.first_token(first_token)

    def alive(self, num_computed_tokens: int) -> bytes:
        """The message that tells nothing but how far the engine is."""
        return self._encoder.alive(num_computed_tokens)

    async def part(
        self,
        part: KvPart,
        block_ids: Sequence[int],
        block_hashes: Sequence[bytes],
        ready_seconds: float = 0.0,
    ) -> bytes:
        """The message of one part, as `KvEncoder.part` makes it; cancelling waits for the copy's end.

        Its blocks were there `ready_seconds` after the header was sent.
        """
        message = await self._worker.block_workers.run(
            self._encoder.part, part, block_ids, block_hashes, ready_seconds
        )
        if part.first_layer + part.num_layers == self._worker.info.kv_layout.layer_count:
            # Of a block that leaves in several parts, the last one.
            self._blocks_sent.inc(part.num_blocks)
        self._bytes_sent.inc(part.num_blocks * part.num_layers * self._bytes_per_layer)
        return message
