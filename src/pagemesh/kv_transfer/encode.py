"""The sending side: what a stream tells, and parts of blocks, as messages."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.kv_transfer.frames import encode_frame
from pagemesh.kv_transfer.parts import KvPart
from pagemesh.kv_transfer.transports import SendingTransport
from pagemesh.v1 import kv_transfer_pb2, types_pb2


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

        `block_ids` is the whole block table, `block_hashes` names its full blocks, which were there
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
