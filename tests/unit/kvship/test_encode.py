"""What messages are made of a range of blocks."""

from __future__ import annotations

import xxhash

from pagemesh.engine.interface import BlockLayout
from pagemesh.kvship.encode import encode_header, encode_part
from pagemesh.kvship.parts import KvPart
from pagemesh.v1 import types_pb2
from tests.fakes.engine import FakeKv

SMALL = BlockLayout(block_size=16, num_layers=2, num_kv_heads=1, head_dim=2, dtype="float32")


def test_a_header_says_who_sends_what() -> None:
    worker = types_pb2.WorkerInfo(worker_id="p", epoch=7, model_fingerprint="f")
    worker.kv_layout.block_size = 16
    header = encode_header(worker, 3).header
    assert (header.worker_id, header.epoch, header.model_fingerprint) == ("p", 7, "f")
    assert header.kv_layout.block_size == 16
    assert header.block_count == 3


def test_a_part_carries_its_blocks_in_the_order_of_the_block_table() -> None:
    kv = FakeKv(SMALL, num_blocks=6)
    for block in range(6):
        kv.memory[:, :, block] = block
    names = [b"a" * 16, b"b" * 16, b"c" * 16]
    blocks = encode_part(kv, KvPart(1, 3, 1, 1, 40), (5, 0, 4, 2), names).blocks
    assert (blocks.first_block_index, blocks.block_count) == (1, 3)
    assert (blocks.first_layer, blocks.layer_count) == (1, 1)
    assert blocks.token_count == 40
    assert list(blocks.block_hashes) == [b"b" * 16, b"c" * 16, b""]
    assert blocks.payload == kv.memory[1:2, :, [0, 4, 2]].tobytes()
    assert blocks.checksum == xxhash.xxh3_64_intdigest(blocks.payload)
