"""Messages of leased blocks, made on threads and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pagemesh.kvship.encode import encode_part
from pagemesh.kvship.parts import KvPart
from pagemesh.telemetry import metrics as declared
from pagemesh.v1 import kv_transfer_pb2
from pagemesh.worker.worker import Worker


class KvSender:
    """Encodes parts of blocks that the caller holds by an export or a pin."""

    def __init__(self, worker: Worker, rpc: Literal["prefill", "fetch"]) -> None:
        self._worker = worker
        self._blocks_sent = worker.metrics.counter(declared.KV_BLOCKS_SENT).labels(rpc)
        self._bytes_sent = worker.metrics.counter(declared.KV_BYTES_SENT).labels(rpc)

    async def encode(
        self,
        part: KvPart,
        block_ids: Sequence[int],
        block_hashes: Sequence[bytes],
        *,
        was_ready: bool,
    ) -> kv_transfer_pb2.KvChunk:
        """The message of one part, as `encode_part` makes it; cancelling waits for the copy's end.

        `was_ready` says that nothing was waited for since the message before.
        """
        chunk = await self._worker.block_workers.run(
            encode_part, self._worker.engine.kv, part, block_ids, block_hashes
        )
        chunk.blocks.was_ready = was_ready
        self._blocks_sent.inc(part.num_blocks)
        self._bytes_sent.inc(len(chunk.blocks.payload))
        return chunk
