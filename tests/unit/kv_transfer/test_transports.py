"""Messages that say where KV lies: what is wrong with them, or with that memory, is found out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pagemesh.core.kv import KvGrant, KvLayout
from pagemesh.errors import KvIntegrityError
from pagemesh.kv_memory.memory import open_memory
from pagemesh.kv_memory.peer import PeerMemory
from pagemesh.kv_transfer.frames import KvPart
from pagemesh.kv_transfer.receiver import Accepted, KvReceiver, ReceivedKv
from pagemesh.kv_transfer.sender import KvEncoder
from pagemesh.kv_transfer.transports import (
    ReceivingTransport,
    host_memory_receiving,
    host_memory_sending,
    memory_name,
)
from pagemesh.messages import layout_to_proto
from pagemesh.v1 import kv_transfer_pb2, types_pb2
from tests.fakes.engine import FakeKv
from tests.support.kv_messages import KvMessage, accept

LAYOUT = KvLayout.uniform(block_size=4, num_layers=3, num_kv_heads=1, head_dim=2, dtype="float32")
NAMES = tuple(bytes([65 + block]) * 16 for block in range(4))
SENDER = types_pb2.WorkerInfo(
    worker_id="prefill-0", epoch=1, model_fingerprint="model", kv_layout=layout_to_proto(LAYOUT)
)
STREAM_NONCE = 77
STAMP = kv_transfer_pb2.KvStamp(
    model_fingerprint="model",
    kv_layout=layout_to_proto(LAYOUT),
    worker_id="prefill-0",
    epoch=1,
    stream_nonce=STREAM_NONCE,
)
SENDER_TABLE = (9, 2, 7, 0, 4)
RECEIVER_TABLE = (1, 8, 3, 6, 5)


class Stream:
    """Both ends: a sender with ten blocks in shared memory, and a receiver that waits for five."""

    def __init__(self) -> None:
        descriptor = open_memory()
        self.sent = FakeKv(LAYOUT, 10, descriptor)
        os.close(descriptor)
        size = self.sent.memory.size
        self.sent.memory[:] = np.arange(size, dtype=np.float32).reshape(self.sent.memory.shape)
        name = self.sent.share()
        assert name is not None
        self.encoder = KvEncoder(SENDER, host_memory_sending(self.sent, name), STREAM_NONCE)
        self.kv = FakeKv(LAYOUT, 10)
        self.received = ReceivedKv(KvGrant("r", 0, RECEIVER_TABLE, NAMES), LAYOUT, 18)
        self.receiver = KvReceiver(self.choose_transport, STAMP, self.received)
        self.peer: PeerMemory | None = None
        accept(self.receiver, self.encoder.header(5))

    def choose_transport(self, header: kv_transfer_pb2.KvHeader) -> ReceivingTransport:
        self.peer = PeerMemory(memory_name(header), LAYOUT)
        return host_memory_receiving(self.kv, self.peer)

    def part(self, first_block: int = 0, num_blocks: int = 5) -> KvMessage:
        num_tokens = min(18, 4 * (first_block + num_blocks)) - 4 * first_block
        part = KvPart(first_block, num_blocks, 0, 3, num_tokens)
        return KvMessage.of_frame(self.encoder.part(part, SENDER_TABLE, NAMES, 0.0, 0))


@pytest.fixture
def stream() -> Iterator[Stream]:
    stream = Stream()
    yield stream
    assert stream.peer is not None
    stream.peer.close()


def refuse(stream: Stream, message: KvMessage, reason: str) -> None:
    with pytest.raises(KvIntegrityError) as caught:
        accept(stream.receiver, message.frame())
    assert caught.value.reason == reason
    assert stream.received.num_verified_tokens == 0


def test_a_message_names_blocks_and_carries_none(stream: Stream) -> None:
    message = stream.part()
    assert message.payload == b""
    assert list(message.blocks.memory_blocks.block_ids) == [9, 2, 7, 0, 4]


def test_blocks_land_where_the_grant_says(stream: Stream) -> None:
    accepted = accept(stream.receiver, stream.part(0, 2).frame())
    assert accepted == Accepted(2 * LAYOUT.num_bytes)
    accept(stream.receiver, stream.part(2, 3).frame())
    assert stream.received.is_complete
    there = stream.sent.memory[:, :, list(SENDER_TABLE)]
    assert np.array_equal(stream.kv.memory[:, :, list(RECEIVER_TABLE)], there)
    assert np.isnan(stream.kv.memory[:, :, [0, 2, 4, 7, 9]]).all()


def test_every_bit_that_was_changed_since_is_found_out() -> None:
    num_bytes = LAYOUT.num_bytes_per_layer // 2
    for bit in range(0, 8 * 5 * 6 * num_bytes, 61):
        stream = Stream()
        message = stream.part()
        at, which = divmod(bit // 8, num_bytes)
        plane, block = divmod(at, 5)
        place = (*divmod(plane, 2), SENDER_TABLE[block], which)
        stream.sent.bytes[place] ^= 1 << bit % 8
        refuse(stream, message, "KV_WRONG_CHECKSUM")
        assert stream.peer is not None
        stream.peer.close()


def test_blocks_that_are_given_to_somebody_else_are_found_out(stream: Stream) -> None:
    message = stream.part()
    stream.sent.memory[:, :, 7] = 1.0
    refuse(stream, message, "KV_WRONG_CHECKSUM")


def wrong_sum(message: KvMessage) -> None:
    message.blocks.memory_blocks.checksum ^= 1


def another_block(message: KvMessage) -> None:
    message.blocks.memory_blocks.block_ids[1] = 3


def other_order(message: KvMessage) -> None:
    ids = message.blocks.memory_blocks.block_ids
    ids[0], ids[1] = ids[1], ids[0]


def behind_the_memory(message: KvMessage) -> None:
    message.blocks.memory_blocks.block_ids[1] = 10


def a_block_less(message: KvMessage) -> None:
    del message.blocks.memory_blocks.block_ids[-1]


def no_blocks(message: KvMessage) -> None:
    message.blocks.ClearField("memory_blocks")


def with_a_payload(message: KvMessage) -> None:
    message.payload = bytes(5 * LAYOUT.num_bytes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(wrong_sum, "KV_WRONG_CHECKSUM", id="wrong checksum"),
        pytest.param(another_block, "KV_WRONG_CHECKSUM", id="another block"),
        pytest.param(other_order, "KV_WRONG_CHECKSUM", id="another order"),
        pytest.param(behind_the_memory, "KV_OUT_OF_RANGE", id="behind the memory"),
        pytest.param(a_block_less, "KV_WRONG_SIZE", id="a block less"),
        pytest.param(no_blocks, "KV_WRONG_SIZE", id="no blocks"),
        pytest.param(with_a_payload, "KV_WRONG_SIZE", id="with a payload"),
    ],
)
def test_wrong_words_are_refused(
    stream: Stream, change: Callable[[KvMessage], None], reason: str
) -> None:
    message = stream.part()
    change(message)
    refuse(stream, message, reason)


def test_what_was_verified_is_not_written_again(stream: Stream) -> None:
    accept(stream.receiver, stream.part(0, 2).frame())
    message = stream.part()
    stream.sent.memory[:] = 1.0
    before = stream.kv.memory.copy()
    with pytest.raises(KvIntegrityError) as caught:
        accept(stream.receiver, message.frame())
    assert caught.value.reason == "KV_DUPLICATE"
    assert np.array_equal(stream.kv.memory, before, equal_nan=True)
