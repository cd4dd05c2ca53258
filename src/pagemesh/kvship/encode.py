"""The sending side: the messages of a stream of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from pagemesh.engine.interface import KvAccess
from pagemesh.kvship.parts import KvPart
from pagemesh.v1 import kv_transfer_pb2, types_pb2


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
