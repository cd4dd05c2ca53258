"""How a range of tokens becomes messages."""

from __future__ import annotations

import pytest
import xxhash

from pagemesh.engine.interface import BlockLayout
from pagemesh.kvship.encode import KvPart, cut_into_parts, encode_header, encode_part, num_blocks_of
from pagemesh.v1 import types_pb2
from tests.fakes.engine import FakeKv

SMALL = BlockLayout(block_size=16, num_layers=2, num_kv_heads=1, head_dim=2, dtype="float32")
# 4 MiB a block, 128 KiB of it in each layer.
LARGE = BlockLayout(block_size=16, num_layers=32, num_kv_heads=16, head_dim=128, dtype="bfloat16")
# 384 KiB a block.
MEDIUM = BlockLayout(block_size=16, num_layers=12, num_kv_heads=4, head_dim=64, dtype="float32")


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (160, 10)]
)
def test_blocks_are_counted_with_the_last_one(num_tokens: int, expected: int) -> None:
    assert num_blocks_of(num_tokens, 16) == expected


def test_small_blocks_travel_together() -> None:
    assert list(cut_into_parts(SMALL, 0, 70)) == [KvPart(0, 5, 0, 2, 70)]


def test_blocks_are_cut_into_runs_of_about_a_mebibyte() -> None:
    assert list(cut_into_parts(MEDIUM, 16, 90)) == [
        KvPart(1, 2, 0, 12, 32),
        KvPart(3, 2, 0, 12, 32),
        KvPart(5, 1, 0, 12, 10),
    ]


def test_a_large_block_is_cut_by_layers() -> None:
    assert list(cut_into_parts(LARGE, 16, 33)) == [
        KvPart(1, 1, 0, 8, 16),
        KvPart(1, 1, 8, 8, 16),
        KvPart(1, 1, 16, 8, 16),
        KvPart(1, 1, 24, 8, 16),
        KvPart(2, 1, 0, 8, 1),
        KvPart(2, 1, 8, 8, 1),
        KvPart(2, 1, 16, 8, 1),
        KvPart(2, 1, 24, 8, 1),
    ]


def test_nothing_is_cut_from_an_empty_range() -> None:
    assert list(cut_into_parts(SMALL, 32, 32)) == []


@pytest.mark.parametrize("layout", [SMALL, MEDIUM, LARGE], ids=["small", "medium", "large"])
def test_parts_cover_each_block_and_layer_once(layout: BlockLayout) -> None:
    covered = [
        (block, layer)
        for part in cut_into_parts(layout, 32, 16 * 11 + 3)
        for block in range(part.first_block, part.first_block + part.num_blocks)
        for layer in range(part.first_layer, part.first_layer + part.num_layers)
    ]
    expected = {(block, layer) for block in range(2, 12) for layer in range(layout.num_layers)}
    assert len(covered) == len(set(covered))
    assert set(covered) == expected


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
