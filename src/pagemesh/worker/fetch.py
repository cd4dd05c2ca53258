"""KvTransfer.Fetch, served by every worker: cached blocks by name, pinned as long as the stream is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc

from pagemesh.errors import InvalidRequestError
from pagemesh.kvship.parts import cut_into_parts, num_blocks_of
from pagemesh.messages import require_same_kv
from pagemesh.v1 import kv_transfer_pb2
from pagemesh.worker.sender import KvSender
from pagemesh.worker.worker import Worker

BLOCK_HASH_SIZE: Final = 16


class KvTransferServicer:
    """Translates Fetch into a pin of the engine and messages of its blocks, as bytes."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._sender = KvSender(worker, rpc="fetch")

    async def Fetch(  # noqa: N802  # the name of the RPC
        self,
        request: kv_transfer_pb2.FetchRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncGenerator[bytes]:
        """Stream the longest cached run of the named blocks, from the first on."""
        worker = self._worker
        require_same_kv(
            worker.info, request.model_fingerprint, request.kv_layout, request.arithmetic
        )
        hashes = tuple(request.block_hashes)
        if any(len(name) != BLOCK_HASH_SIZE for name in hashes):
            raise InvalidRequestError("a block hash has not 16 bytes", param="block_hashes")
        layout = worker.engine.info.layout
        max_blocks = num_blocks_of(worker.engine.info.max_model_len, layout.block_size)
        if request.first_block_index + len(hashes) > max_blocks:
            raise InvalidRequestError(
                f"first_block_index is {request.first_block_index} and {len(hashes)} blocks are named, "
                f"but the longest prompt has {max_blocks} blocks",
                param="first_block_index",
            )
        pin_id = worker.dispatcher.unique_id("fetch")
        # No timeouts here: the engine answers between two steps, and a caller that no longer reads is
        # ended by its deadline (service_config.json) or by keepalive, which close this generator.
        try:
            block_ids = await asyncio.wrap_future(worker.engine.pin(pin_id, hashes))
            stream = self._sender.begin(request.caller_host, request.stream_nonce)
            yield stream.header(len(block_ids))
            # The caller's block table from its first block on: what is in front of that is not read.
            first = request.first_block_index
            table, names = (0,) * first + block_ids, (b"",) * first + hashes
            start, end = first * layout.block_size, len(table) * layout.block_size
            for part in cut_into_parts(layout, start, end, stream.max_part_bytes):
                yield await stream.part(
                    part, table, names, ready_seconds=0.0, num_reused_tokens=end
                )
            await stream.finish()
        finally:
            worker.engine.release(pin_id)
