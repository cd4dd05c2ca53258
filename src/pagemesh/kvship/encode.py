"""The sending side: a range of tokens is cut into parts of about 1 MiB, each of which is one message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import xxhash

from pagemesh.engine.interface import BlockLayout, KvAccess
from pagemesh.v1 import kv_transfer_pb2, types_pb2

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
"""Larger messages and smaller ones are slower through gRPC in Python; measured at 64 KiB to 16 MiB."""


class KvPart(NamedTuple):
    """What one message carries: a run of blocks of the block table, for a run of layers."""

    first_block: int
    """Position in the block table."""
    num_blocks: int
    first_layer: int
    num_layers: int
    num_tokens: int
    """Token slots of the run that hold KV."""


def num_blocks_of(num_tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens, the last one perhaps partly."""
    return -(-num_tokens // block_size)


def cut_into_parts(layout: BlockLayout, start: int, end: int) -> Iterator[KvPart]:
    """Cut tokens [start, end) by runs of blocks, and by layers where one block is too large already.

    `start` is a multiple of the block size; `end` need not be.
    """
    blocks_per_part = max(1, MAX_PAYLOAD_BYTES // layout.num_bytes)
    layers_per_part = layout.num_layers
    if layout.num_bytes > MAX_PAYLOAD_BYTES:
        layers_per_part = max(1, MAX_PAYLOAD_BYTES // layout.num_bytes_per_layer)
    end_block = num_blocks_of(end, layout.block_size)
    for first_block in range(start // layout.block_size, end_block, blocks_per_part):
        num_blocks = min(blocks_per_part, end_block - first_block)
        last_token = min(end, (first_block + num_blocks) * layout.block_size)
        for first_layer in range(0, layout.num_layers, layers_per_part):
            yield KvPart(
                first_block=first_block,
                num_blocks=num_blocks,
                first_layer=first_layer,
                num_layers=min(layers_per_part, layout.num_layers - first_layer),
                num_tokens=last_token - first_block * layout.block_size,
            )


def encode_header(worker: types_pb2.WorkerInfo, num_blocks: int) -> kv_transfer_pb2.KvChunk:
    """The first message of a stream of so many blocks."""
    return kv_transfer_pb2.KvChunk(
        header=kv_transfer_pb2.KvHeader(
            model_fingerprint=worker.model_fingerprint,
            kv_layout=worker.kv_layout,
            worker_id=worker.worker_id,
            epoch=worker.epoch,
            block_count=num_blocks,
        )
    )


def encode_part(
    kv: KvAccess, part: KvPart, block_ids: Sequence[int], block_hashes: Sequence[bytes]
) -> kv_transfer_pb2.KvChunk:
    """Read the blocks of one part and make its message.

    `block_ids` is the whole block table, `block_hashes` names its full blocks. Copies memory and
    computes a checksum, so it belongs on a thread, and the caller must hold the blocks until it ends.
    """
    end_block = part.first_block + part.num_blocks
    payload = kv.read(block_ids[part.first_block : end_block], part.first_layer, part.num_layers)
    hashes = list(block_hashes[part.first_block : end_block])
    hashes += [b""] * (part.num_blocks - len(hashes))
    return kv_transfer_pb2.KvChunk(
        blocks=kv_transfer_pb2.KvBlocks(
            first_block_index=part.first_block,
            block_count=part.num_blocks,
            first_layer=part.first_layer,
            layer_count=part.num_layers,
            token_count=part.num_tokens,
            block_hashes=hashes,
            payload=payload,
            checksum=xxhash.xxh3_64_intdigest(payload),
        )
    )
