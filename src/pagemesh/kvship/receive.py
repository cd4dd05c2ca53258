"""The receiving side: nothing is written into a block before its message was found to be right."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from pagemesh.engine.interface import BlockLayout, KvAccess, KvGrant
from pagemesh.errors import KvIntegrityError
from pagemesh.kvship.layout import describe_layout, layout_to_proto
from pagemesh.kvship.parts import num_blocks_of
from pagemesh.v1 import kv_transfer_pb2


@dataclass(frozen=True, slots=True)
class ExpectedKv:
    """What a stream has to carry."""

    worker_id: str
    """The sender that was asked."""
    epoch: int
    """Its epoch, as far as the asker knows."""
    model_fingerprint: str
    layout: BlockLayout
    num_tokens: int
    """Prompt length in tokens."""
    grant: KvGrant
    """The blocks that may be written: those behind the held tokens."""


class KvReceiver:
    """Verifies the messages of one stream, in order, and writes what is right into granted blocks.

    Parts may come in any order of blocks and layers, but each (block, layer) only once. The first wrong
    message raises KvIntegrityError, and so does every message after it; what was verified before stays
    in the blocks and counts in `num_verified_tokens`. Not thread-safe: one message at a time.
    """

    def __init__(self, kv: KvAccess, expected: ExpectedKv) -> None:
        self._kv = kv
        self._expected = expected
        layout = expected.layout
        self._first_block = expected.grant.num_held_tokens // layout.block_size
        self._end_block = num_blocks_of(expected.num_tokens, layout.block_size)
        self._all_layers = (1 << layout.num_layers) - 1
        self._layers = [0] * (self._end_block - self._first_block)  # bit mask of verified layers
        self._num_complete = 0  # leading blocks, behind the held ones, that have all layers
        self._has_header = False
        self._num_announced = 0
        self._has_first_token = False
        self._failed = False

    @property
    def num_verified_tokens(self) -> int:
        """Leading prompt tokens whose KV is in the blocks: the held ones and what was verified."""
        end_block = self._first_block + self._num_complete
        return min(end_block * self._expected.layout.block_size, self._expected.num_tokens)

    @property
    def is_complete(self) -> bool:
        """Whether the whole prompt's KV is in the blocks."""
        return self._num_complete == len(self._layers)

    @property
    def has_all_announced(self) -> bool:
        """Whether the header came, and all the blocks that it promised: perhaps fewer than are missing."""
        return self._has_header and self._num_complete >= self._num_announced

    def accept(self, chunk: kv_transfer_pb2.KvChunk) -> kv_transfer_pb2.FirstToken | None:
        """Check one message and write its blocks; gives the first token when the message carries it.

        Copies memory and computes a checksum, so it belongs on a thread.
        """
        if self._failed:
            raise KvIntegrityError("a message follows a wrong one", reason="KV_AFTER_ERROR")
        try:
            return self._accept(chunk)
        except KvIntegrityError:
            self._failed = True
            raise

    def _accept(self, chunk: kv_transfer_pb2.KvChunk) -> kv_transfer_pb2.FirstToken | None:
        kind = chunk.WhichOneof("payload")
        if kind == "header":
            self._check_header(chunk.header)
            return None
        if not self._has_header:
            raise KvIntegrityError(f"the stream begins with {kind}", reason="KV_NO_HEADER")
        if kind == "blocks":
            self._check_range(chunk.blocks)
            self._check_content(chunk.blocks)
            self._write(chunk.blocks)
            return None
        if kind == "first_token":
            if self._has_first_token:
                raise KvIntegrityError("the first token came twice", reason="KV_DUPLICATE")
            self._has_first_token = True
            return chunk.first_token
        if kind == "alive":
            return None
        raise KvIntegrityError("a message is empty", reason="KV_EMPTY")

    def _check_header(self, header: kv_transfer_pb2.KvHeader) -> None:
        expected = self._expected
        if self._has_header:
            raise KvIntegrityError("the header came twice", reason="KV_DUPLICATE")
        if header.worker_id != expected.worker_id:
            raise KvIntegrityError(
                f"the sender is {header.worker_id!r}, but {expected.worker_id!r} was asked",
                reason="KV_WRONG_SENDER",
            )
        if header.epoch != expected.epoch:
            raise KvIntegrityError(
                f"the sender's epoch is {header.epoch}, but {expected.epoch} was asked",
                reason="KV_WRONG_EPOCH",
            )
        if header.model_fingerprint != expected.model_fingerprint:
            raise KvIntegrityError(
                f"the blocks are of model {header.model_fingerprint!r}, "
                f"not {expected.model_fingerprint!r}",
                reason="KV_WRONG_MODEL",
            )
        if header.kv_layout != layout_to_proto(expected.layout):
            raise KvIntegrityError(
                f"the blocks have {describe_layout(header.kv_layout)}", reason="KV_WRONG_LAYOUT"
            )
        if header.block_count > len(self._layers):
            raise KvIntegrityError(
                f"{header.block_count} blocks are announced, but {len(self._layers)} are missing",
                reason="KV_OUT_OF_RANGE",
            )
        self._has_header = True
        self._num_announced = header.block_count

    def _check_range(self, blocks: kv_transfer_pb2.KvBlocks) -> None:
        layout = self._expected.layout
        first, end = blocks.first_block_index, blocks.first_block_index + blocks.block_count
        end_layer = blocks.first_layer + blocks.layer_count
        if blocks.block_count == 0 or not self._first_block <= first < end <= self._end_block:
            raise KvIntegrityError(
                f"blocks [{first}, {end}) are not in [{self._first_block}, {self._end_block})",
                reason="KV_OUT_OF_RANGE",
            )
        if blocks.layer_count == 0 or end_layer > layout.num_layers:
            raise KvIntegrityError(
                f"layers [{blocks.first_layer}, {end_layer}) are not in [0, {layout.num_layers})",
                reason="KV_OUT_OF_RANGE",
            )
        last_token = min(end * layout.block_size, self._expected.num_tokens)
        if blocks.token_count != last_token - first * layout.block_size:
            raise KvIntegrityError(
                f"blocks [{first}, {end}) carry {blocks.token_count} tokens, "
                f"not {last_token - first * layout.block_size}",
                reason="KV_WRONG_COUNT",
            )
        mask = _layer_mask(blocks)
        if any(self._layers[block - self._first_block] & mask for block in range(first, end)):
            raise KvIntegrityError(
                f"blocks [{first}, {end}) came twice in part", reason="KV_DUPLICATE"
            )

    def _check_content(self, blocks: kv_transfer_pb2.KvBlocks) -> None:
        layout = self._expected.layout
        first, end = blocks.first_block_index, blocks.first_block_index + blocks.block_count
        names = self._expected.grant.block_hashes
        wanted = [names[block] if block < len(names) else b"" for block in range(first, end)]
        if list(blocks.block_hashes) != wanted:
            raise KvIntegrityError(
                f"blocks [{first}, {end}) are of another prompt", reason="KV_WRONG_HASH"
            )
        num_bytes = blocks.block_count * blocks.layer_count * layout.num_bytes_per_layer
        if len(blocks.payload) != num_bytes:
            raise KvIntegrityError(
                f"blocks [{first}, {end}) have {len(blocks.payload)} bytes, not {num_bytes}",
                reason="KV_WRONG_SIZE",
            )
        if xxhash.xxh3_64_intdigest(blocks.payload) != blocks.checksum:
            raise KvIntegrityError(
                f"blocks [{first}, {end}) do not match their checksum", reason="KV_WRONG_CHECKSUM"
            )

    def _write(self, blocks: kv_transfer_pb2.KvBlocks) -> None:
        first, end = blocks.first_block_index, blocks.first_block_index + blocks.block_count
        block_ids = self._expected.grant.block_ids[first:end]
        self._kv.write(block_ids, blocks.first_layer, blocks.layer_count, blocks.payload)
        mask = _layer_mask(blocks)
        for block in range(first, end):
            self._layers[block - self._first_block] |= mask
        while (
            self._num_complete < len(self._layers)
            and self._layers[self._num_complete] == self._all_layers
        ):
            self._num_complete += 1


def _layer_mask(blocks: kv_transfer_pb2.KvBlocks) -> int:
    return ((1 << blocks.layer_count) - 1) << blocks.first_layer
