"""KvTransfer.Fetch, served by every worker: cached blocks by their hashes, pinned as long as the stream is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import count
from typing import Any

import grpc

from pagemesh.cache.block_hash import BLOCK_HASH_SIZE
from pagemesh.errors import InvalidRequestError
from pagemesh.kv_transfer.endpoint import KvEndpoint
from pagemesh.kv_transfer.frames import cut_into_parts, num_blocks_of
from pagemesh.kv_transfer.sender import KvSender
from pagemesh.messages import require_same_kv
from pagemesh.v1 import kv_transfer_pb2


class KvTransferServicer:
    """Translates Fetch into a pin of the engine and messages of its blocks, as bytes."""

    def __init__(self, endpoint: KvEndpoint) -> None:
        self._endpoint = endpoint
        self._numbers = count(1)
        self._sender = KvSender(endpoint, rpc="fetch")

    async def Fetch(  # noqa: N802  # the name of the RPC
        self,
        request: kv_transfer_pb2.FetchRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncGenerator[bytes]:
        """Stream the longest cached run of the blocks asked for, from the first on."""
        endpoint = self._endpoint
        require_same_kv(
            endpoint.info, request.model_fingerprint, request.kv_layout, request.arithmetic
        )
        hashes = tuple(request.block_hashes)
        if any(len(each) != BLOCK_HASH_SIZE for each in hashes):
            raise InvalidRequestError("a block hash has not 16 bytes", param="block_hashes")
        layout = endpoint.engine.info.layout
        max_blocks = num_blocks_of(endpoint.engine.info.max_model_len, layout.block_size)
        if request.first_block_index + len(hashes) > max_blocks:
            raise InvalidRequestError(
                f"first_block_index is {request.first_block_index} and {len(hashes)} blocks are named, "
                f"but the longest prompt has {max_blocks} blocks",
                param="first_block_index",
            )
        # Those of requests end otherwise (`StepDispatcher.unique_id`).
        pin_id = f"fetch@{next(self._numbers)}"
        # No timeouts here: the engine answers between two steps, and a caller that no longer reads is
        # ended by its deadline (service_config.json) or by keepalive, which close this generator.
        try:
            block_ids = await asyncio.wrap_future(endpoint.engine.pin(pin_id, hashes))
            stream = self._sender.begin(request.caller_host, request.stream_nonce)
            yield stream.header(len(block_ids))
            # The caller's block table from its first block on: what is in front of that is not read.
            first = request.first_block_index
            table, all_hashes = (0,) * first + block_ids, (b"",) * first + hashes
            start, end = first * layout.block_size, len(table) * layout.block_size
            for part in cut_into_parts(layout, start, end, stream.max_part_bytes):
                yield await stream.part(
                    part, table, all_hashes, ready_seconds=0.0, num_reused_tokens=end
                )
            await stream.finish()
        finally:
            endpoint.engine.release(pin_id)
