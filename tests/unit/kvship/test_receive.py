"""What a receiver takes, what it refuses, and what it keeps."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import xxhash

from pagemesh.engine.interface import BlockLayout, KvGrant
from pagemesh.errors import KvIntegrityError
from pagemesh.kvship.encode import encode_header, encode_part
from pagemesh.kvship.layout import layout_to_proto
from pagemesh.kvship.parts import KvPart
from pagemesh.kvship.receive import ExpectedKv, KvReceiver
from pagemesh.v1 import kv_transfer_pb2, types_pb2
from tests.fakes.engine import FakeKv

LAYOUT = BlockLayout(block_size=4, num_layers=3, num_kv_heads=1, head_dim=2, dtype="float32")
NUM_TOKENS = 18
NAMES = tuple(bytes([65 + block]) * 16 for block in range(4))
SENDER = types_pb2.WorkerInfo(
    worker_id="prefill-0", epoch=1, model_fingerprint="model", kv_layout=layout_to_proto(LAYOUT)
)
SENDER_TABLE = (9, 2, 7, 0, 4)
RECEIVER_TABLE = (1, 8, 3, 6, 5)


def make_kv() -> FakeKv:
    kv = FakeKv(LAYOUT, num_blocks=10)
    kv.memory[:] = np.arange(kv.memory.size, dtype=np.float32).reshape(kv.memory.shape)
    return kv


class Stream:
    """Both ends: blocks of the sender's memory, and a receiver that holds the first block."""

    def __init__(self, held: int = 4) -> None:
        self.sent = make_kv()
        self.received = FakeKv(LAYOUT, num_blocks=10)
        grant = KvGrant("r", held, RECEIVER_TABLE, NAMES)
        self.receiver = KvReceiver(
            self.received, ExpectedKv("prefill-0", 1, "model", LAYOUT, NUM_TOKENS, grant)
        )

    def header(self) -> kv_transfer_pb2.KvChunk:
        return encode_header(SENDER, 4)

    def part(
        self, first_block: int, num_blocks: int, first_layer: int = 0, num_layers: int = 3
    ) -> kv_transfer_pb2.KvChunk:
        last_token = min(NUM_TOKENS, 4 * (first_block + num_blocks))
        part = KvPart(
            first_block, num_blocks, first_layer, num_layers, last_token - 4 * first_block
        )
        return encode_part(self.sent, part, SENDER_TABLE, NAMES)

    def has(self, first_block: int, end_block: int) -> bool:
        """Whether the receiver's blocks equal the sender's, and all others are untouched."""
        table = list(RECEIVER_TABLE[first_block:end_block])
        expected = self.sent.memory[:, :, list(SENDER_TABLE[first_block:end_block])]
        others = [block for block in range(10) if block not in table]
        return bool(
            np.array_equal(self.received.memory[:, :, table], expected)
            and np.isnan(self.received.memory[:, :, others]).all()
        )


@pytest.fixture
def stream() -> Stream:
    stream = Stream()
    stream.receiver.accept(stream.header())
    return stream


def refuse(stream: Stream, chunk: kv_transfer_pb2.KvChunk, reason: str) -> None:
    before = stream.received.memory.copy()
    num_verified = stream.receiver.num_verified_tokens
    with pytest.raises(KvIntegrityError) as caught:
        stream.receiver.accept(chunk)
    assert caught.value.reason == reason
    assert np.array_equal(stream.received.memory, before, equal_nan=True)
    assert stream.receiver.num_verified_tokens == num_verified


def test_blocks_land_where_the_grant_says(stream: Stream) -> None:
    assert stream.receiver.num_verified_tokens == 4
    assert stream.receiver.accept(stream.part(1, 2)) is None
    assert stream.receiver.num_verified_tokens == 12
    assert not stream.receiver.is_complete
    stream.receiver.accept(stream.part(3, 2))
    assert stream.receiver.num_verified_tokens == 18
    assert stream.receiver.is_complete
    assert stream.has(1, 5)


def test_the_verified_prefix_ends_at_the_first_gap(stream: Stream) -> None:
    stream.receiver.accept(stream.part(3, 2))
    assert stream.receiver.num_verified_tokens == 4
    stream.receiver.accept(stream.part(1, 1))
    assert stream.receiver.num_verified_tokens == 8
    stream.receiver.accept(stream.part(2, 1))
    assert stream.receiver.num_verified_tokens == 18


def test_a_block_counts_when_all_its_layers_are_there(stream: Stream) -> None:
    stream.receiver.accept(stream.part(1, 4, first_layer=2, num_layers=1))
    stream.receiver.accept(stream.part(1, 2, first_layer=0, num_layers=1))
    assert stream.receiver.num_verified_tokens == 4
    stream.receiver.accept(stream.part(1, 1, first_layer=1, num_layers=1))
    assert stream.receiver.num_verified_tokens == 8
    stream.receiver.accept(stream.part(2, 1, first_layer=1, num_layers=1))
    assert stream.receiver.num_verified_tokens == 12
    stream.receiver.accept(stream.part(3, 2, first_layer=0, num_layers=2))
    assert stream.receiver.is_complete
    assert stream.has(1, 5)


def test_the_first_token_is_handed_on(stream: Stream) -> None:
    token = kv_transfer_pb2.KvChunk(first_token=kv_transfer_pb2.FirstToken(token_id=42))
    assert stream.receiver.accept(token) == token.first_token
    refuse(stream, token, "KV_DUPLICATE")


def test_nothing_may_come_before_the_header() -> None:
    refuse(Stream(), Stream().part(1, 1), "KV_NO_HEADER")
    token = kv_transfer_pb2.KvChunk(first_token=kv_transfer_pb2.FirstToken(token_id=42))
    refuse(Stream(), token, "KV_NO_HEADER")


def test_a_second_header_is_refused(stream: Stream) -> None:
    refuse(stream, stream.header(), "KV_DUPLICATE")


def test_an_empty_message_is_refused(stream: Stream) -> None:
    refuse(stream, kv_transfer_pb2.KvChunk(), "KV_EMPTY")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"worker_id": "other"}, "KV_WRONG_SENDER", id="another worker"),
        pytest.param({"epoch": 2}, "KV_WRONG_EPOCH", id="another epoch"),
        pytest.param({"model_fingerprint": "x"}, "KV_WRONG_MODEL", id="another model"),
        pytest.param({"block_count": 5}, "KV_OUT_OF_RANGE", id="too many blocks"),
    ],
)
def test_a_wrong_header_is_refused(change: dict[str, object], reason: str) -> None:
    stream = Stream()
    chunk = stream.header()
    for name, value in change.items():
        setattr(chunk.header, name, value)
    refuse(stream, chunk, reason)


@pytest.mark.parametrize(
    "name", ["block_size", "layer_count", "kv_head_count", "head_dim", "dtype"]
)
def test_another_layout_is_refused(name: str) -> None:
    stream = Stream()
    chunk = stream.header()
    setattr(chunk.header.kv_layout, name, "bfloat16" if name == "dtype" else 8)
    refuse(stream, chunk, "KV_WRONG_LAYOUT")


def test_what_was_sent_twice_is_refused(stream: Stream) -> None:
    stream.receiver.accept(stream.part(1, 2))
    refuse(stream, stream.part(1, 2), "KV_DUPLICATE")


def test_what_overlaps_is_refused(stream: Stream) -> None:
    stream.receiver.accept(stream.part(2, 1, first_layer=1, num_layers=1))
    refuse(stream, stream.part(1, 3), "KV_DUPLICATE")


def spoil(**change: object) -> Callable[[kv_transfer_pb2.KvBlocks], None]:
    def apply(blocks: kv_transfer_pb2.KvBlocks) -> None:
        for name, value in change.items():
            setattr(blocks, name, value)

    return apply


def other_name(blocks: kv_transfer_pb2.KvBlocks) -> None:
    blocks.block_hashes[0] = b"z" * 16


def name_missing(blocks: kv_transfer_pb2.KvBlocks) -> None:
    del blocks.block_hashes[-1]


def truncated(blocks: kv_transfer_pb2.KvBlocks) -> None:
    blocks.payload = blocks.payload[:-1]
    blocks.checksum = xxhash.xxh3_64_intdigest(blocks.payload)


def too_long(blocks: kv_transfer_pb2.KvBlocks) -> None:
    blocks.payload += b"\0" * 4
    blocks.checksum = xxhash.xxh3_64_intdigest(blocks.payload)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(spoil(first_block_index=0), "KV_OUT_OF_RANGE", id="held block"),
        pytest.param(spoil(first_block_index=4), "KV_OUT_OF_RANGE", id="behind the prompt"),
        pytest.param(spoil(block_count=0), "KV_OUT_OF_RANGE", id="no blocks"),
        pytest.param(spoil(block_count=2**31), "KV_OUT_OF_RANGE", id="absurdly many blocks"),
        pytest.param(spoil(first_layer=1), "KV_OUT_OF_RANGE", id="behind the layers"),
        pytest.param(spoil(layer_count=0), "KV_OUT_OF_RANGE", id="no layers"),
        pytest.param(spoil(token_count=7), "KV_WRONG_COUNT", id="a token less"),
        pytest.param(other_name, "KV_WRONG_HASH", id="another block"),
        pytest.param(name_missing, "KV_WRONG_HASH", id="name missing"),
        pytest.param(truncated, "KV_WRONG_SIZE", id="truncated"),
        pytest.param(too_long, "KV_WRONG_SIZE", id="too long"),
        pytest.param(spoil(layer_count=2), "KV_WRONG_SIZE", id="more than it says"),
        pytest.param(spoil(checksum=1), "KV_WRONG_CHECKSUM", id="wrong checksum"),
    ],
)
def test_wrong_blocks_are_refused_before_anything_is_written(
    stream: Stream, change: Callable[[kv_transfer_pb2.KvBlocks], None], reason: str
) -> None:
    chunk = stream.part(1, 2)
    change(chunk.blocks)
    refuse(stream, chunk, reason)


def test_the_partial_block_has_no_name_and_its_own_count(stream: Stream) -> None:
    chunk = stream.part(4, 1)
    assert chunk.blocks.token_count == 2
    chunk.blocks.block_hashes[0] = b"z" * 16
    refuse(stream, chunk, "KV_WRONG_HASH")


def test_any_flipped_bit_is_seen() -> None:
    random_bits = random.Random(0)
    for _ in range(200):
        stream = Stream()
        stream.receiver.accept(stream.header())
        chunk = stream.part(1, 4)
        payload = bytearray(chunk.blocks.payload)
        bit = random_bits.randrange(8 * len(payload))
        payload[bit // 8] ^= 1 << bit % 8
        chunk.blocks.payload = bytes(payload)
        refuse(stream, chunk, "KV_WRONG_CHECKSUM")


def test_what_was_verified_before_an_error_stays_and_nothing_follows_it(stream: Stream) -> None:
    stream.receiver.accept(stream.part(1, 2))
    wrong = stream.part(3, 1)
    wrong.blocks.checksum ^= 1
    refuse(stream, wrong, "KV_WRONG_CHECKSUM")
    refuse(stream, stream.part(3, 2), "KV_AFTER_ERROR")
    assert stream.receiver.num_verified_tokens == 12
    assert stream.has(1, 3)


def test_a_failed_write_is_not_counted(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise KvIntegrityError("wrong size")

    monkeypatch.setattr(stream.received, "write", fail)
    refuse(stream, stream.part(1, 2), "KV_INTEGRITY")


def test_a_sign_of_life_changes_nothing_and_comes_after_the_header_alone() -> None:
    alive = kv_transfer_pb2.KvChunk(alive=kv_transfer_pb2.KvAlive(computed_token_count=4))
    stream = Stream()
    refuse(stream, alive, "KV_NO_HEADER")
    stream = Stream()
    stream.receiver.accept(stream.header())
    for _ in range(2):
        assert stream.receiver.accept(alive) is None
    assert stream.receiver.num_verified_tokens == 4
