"""What a receiver takes, what it refuses, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemesh.core.kv import KvGrant, KvLayout
from pagemesh.errors import KvIntegrityError
from pagemesh.kv_transfer.frames import KvPart
from pagemesh.kv_transfer.receiver import Accepted, KvReceiver, ReceivedKv
from pagemesh.kv_transfer.sender import KvEncoder
from pagemesh.kv_transfer.transports import PayloadReceiving, PayloadSending, ReceivingTransport
from pagemesh.messages import layout_to_proto
from pagemesh.v1 import kv_transfer_pb2, types_pb2
from tests.fakes.engine import FakeKv
from tests.support.kv_messages import KvMessage, accept

LAYOUT = KvLayout.uniform(block_size=4, num_layers=3, num_kv_heads=1, head_dim=2, dtype="float32")
NUM_TOKENS = 18
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


def make_kv() -> FakeKv:
    kv = FakeKv(LAYOUT, num_blocks=10)
    kv.memory[:] = np.arange(kv.memory.size, dtype=np.float32).reshape(kv.memory.shape)
    return kv


class Stream:
    """Both ends: blocks of the sender's memory, and a receiver that holds the first block."""

    def __init__(self, held: int = 4) -> None:
        self.sent = make_kv()
        self.encoder = KvEncoder(SENDER, PayloadSending(self.sent), STREAM_NONCE)
        self.kv = FakeKv(LAYOUT, num_blocks=10)
        self.received = ReceivedKv(KvGrant("r", held, RECEIVER_TABLE, NAMES), LAYOUT, NUM_TOKENS)
        self.receiver = KvReceiver(self.choose_transport, STAMP, self.received)

    def choose_transport(self, header: kv_transfer_pb2.KvHeader) -> ReceivingTransport:
        return PayloadReceiving(self.kv)

    def accept(self, message: KvMessage) -> Accepted:
        return accept(self.receiver, message.frame())

    def header(self, num_blocks: int = 4) -> KvMessage:
        return KvMessage.of_frame(self.encoder.header(num_blocks))

    def token(self, token_id: int = 42) -> KvMessage:
        token = kv_transfer_pb2.FirstToken(token_id=token_id)
        return KvMessage.of_frame(self.encoder.first_token(token))

    def part(
        self, first_block: int, num_blocks: int, first_layer: int = 0, num_layers: int = 3
    ) -> KvMessage:
        last_token = min(NUM_TOKENS, 4 * (first_block + num_blocks))
        part = KvPart(
            first_block, num_blocks, first_layer, num_layers, last_token - 4 * first_block
        )
        return KvMessage.of_frame(self.encoder.part(part, SENDER_TABLE, NAMES, 0.25, 0))

    def has(self, first_block: int, end_block: int) -> bool:
        """Whether the receiver's blocks equal the sender's, and all others are untouched."""
        table = list(RECEIVER_TABLE[first_block:end_block])
        expected = self.sent.memory[:, :, list(SENDER_TABLE[first_block:end_block])]
        others = [block for block in range(10) if block not in table]
        return bool(
            np.array_equal(self.kv.memory[:, :, table], expected)
            and np.isnan(self.kv.memory[:, :, others]).all()
        )


@pytest.fixture
def stream() -> Stream:
    stream = Stream()
    stream.accept(stream.header())
    return stream


def refuse(stream: Stream, message: KvMessage, reason: str) -> None:
    refuse_bytes(stream, message.frame(), reason)


def refuse_bytes(stream: Stream, frame: bytes, reason: str) -> None:
    before = stream.kv.memory.copy()
    num_verified = stream.received.num_verified_tokens
    with pytest.raises(KvIntegrityError) as caught:
        accept(stream.receiver, frame)
    assert caught.value.reason == reason
    assert np.array_equal(stream.kv.memory, before, equal_nan=True)
    assert stream.received.num_verified_tokens == num_verified


def test_blocks_land_where_the_grant_says(stream: Stream) -> None:
    assert stream.received.num_verified_tokens == 4
    assert stream.accept(stream.part(1, 2)) == Accepted(2 * 3 * 64, ready_seconds=0.25)
    assert stream.received.num_verified_tokens == 12
    assert not stream.received.is_complete
    stream.accept(stream.part(3, 2))
    assert stream.received.num_verified_tokens == 18
    assert stream.received.is_complete
    assert stream.has(1, 5)


def test_the_verified_prefix_ends_at_the_first_gap(stream: Stream) -> None:
    stream.accept(stream.part(3, 2))
    assert stream.received.num_verified_tokens == 4
    stream.accept(stream.part(1, 1))
    assert stream.received.num_verified_tokens == 8
    stream.accept(stream.part(2, 1))
    assert stream.received.num_verified_tokens == 18


def test_a_block_counts_when_all_its_layers_are_there(stream: Stream) -> None:
    stream.accept(stream.part(1, 4, first_layer=2, num_layers=1))
    stream.accept(stream.part(1, 2, first_layer=0, num_layers=1))
    assert stream.received.num_verified_tokens == 4
    stream.accept(stream.part(1, 1, first_layer=1, num_layers=1))
    assert stream.received.num_verified_tokens == 8
    stream.accept(stream.part(2, 1, first_layer=1, num_layers=1))
    assert stream.received.num_verified_tokens == 12
    stream.accept(stream.part(3, 2, first_layer=0, num_layers=2))
    assert stream.received.is_complete
    assert stream.has(1, 5)


def test_the_first_token_is_handed_on(stream: Stream) -> None:
    token = kv_transfer_pb2.FirstToken(token_id=42)
    assert stream.accept(stream.token()) == Accepted(first_token=token)
    refuse(stream, stream.token(), "KV_DUPLICATE")


def test_nothing_may_come_before_the_header() -> None:
    refuse(Stream(), Stream().part(1, 1), "KV_NO_HEADER")
    refuse(Stream(), Stream().token(), "KV_NO_HEADER")


def test_a_second_header_is_refused(stream: Stream) -> None:
    refuse(stream, stream.header(), "KV_DUPLICATE")


def test_an_empty_message_is_refused(stream: Stream) -> None:
    content = kv_transfer_pb2.KvContent(stamp=STAMP)
    refuse(stream, KvMessage(content, b""), "KV_EMPTY")
    refuse_bytes(Stream(), b"", "KV_MALFORMED")


def test_only_blocks_have_a_payload() -> None:
    for message in (Stream().header(), Stream().token()):
        stream = Stream()
        if message.kind != "header":
            stream.accept(stream.header())
        message.payload = b"KV"
        refuse(stream, message, "KV_WRONG_SIZE")


def test_more_blocks_than_are_missing_are_refused() -> None:
    refuse(Stream(), Stream().header(num_blocks=5), "KV_OUT_OF_RANGE")


def test_blocks_that_were_not_announced_are_refused() -> None:
    stream = Stream()
    stream.accept(stream.header(num_blocks=2))
    stream.accept(stream.part(2, 1))
    refuse(stream, stream.part(3, 1), "KV_OUT_OF_RANGE")


STAMPS = [
    pytest.param({"worker_id": "other"}, "KV_WRONG_SENDER", id="another worker"),
    pytest.param({"epoch": 2}, "KV_WRONG_EPOCH", id="another epoch"),
    pytest.param({"model_fingerprint": "x"}, "KV_WRONG_MODEL", id="another model"),
    pytest.param({"block_size": 8}, "KV_WRONG_LAYOUT", id="another block size"),
    pytest.param({"layer_count": 8}, "KV_WRONG_LAYOUT", id="more layers"),
    pytest.param({"kv_head_count": 8}, "KV_WRONG_LAYOUT", id="more heads"),
    pytest.param({"head_dim": 8}, "KV_WRONG_LAYOUT", id="another head"),
    pytest.param({"dtype": "bfloat16"}, "KV_WRONG_LAYOUT", id="another type"),
    pytest.param({"stream_nonce": 5}, "KV_WRONG_STREAM", id="another stream"),
]


@pytest.mark.parametrize("kind", ["header", "first token", "blocks"])
@pytest.mark.parametrize(("change", "reason"), STAMPS)
def test_whoever_is_not_expected_is_refused_in_every_message(
    kind: str, change: dict[str, object], reason: str
) -> None:
    stream = Stream()
    message = stream.header()
    if kind != "header":
        stream.accept(message)
        message = stream.token() if kind == "first token" else stream.part(1, 2)
    stamp = message.content.stamp
    for name, value in change.items():
        setattr(stamp if hasattr(stamp, name) else stamp.kv_layout, name, value)
    refuse(stream, message, reason)


def test_what_was_sent_twice_is_refused(stream: Stream) -> None:
    stream.accept(stream.part(1, 2))
    refuse(stream, stream.part(1, 2), "KV_DUPLICATE")


def test_what_overlaps_is_refused(stream: Stream) -> None:
    stream.accept(stream.part(2, 1, first_layer=1, num_layers=1))
    refuse(stream, stream.part(1, 3), "KV_DUPLICATE")


def spoil(**change: object) -> Callable[[KvMessage], None]:
    def apply(message: KvMessage) -> None:
        for name, value in change.items():
            setattr(message.blocks, name, value)

    return apply


def other_name(message: KvMessage) -> None:
    message.blocks.block_hashes[0] = b"z" * 16


def name_missing(message: KvMessage) -> None:
    del message.blocks.block_hashes[-1]


def truncated(message: KvMessage) -> None:
    message.payload = message.payload[:-1]


def too_long(message: KvMessage) -> None:
    message.payload += b"\0" * 4


def empty(message: KvMessage) -> None:
    message.payload = b""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(spoil(first_block_index=0), "KV_OUT_OF_RANGE", id="held block"),
        pytest.param(spoil(first_block_index=4), "KV_OUT_OF_RANGE", id="behind the prompt"),
        pytest.param(spoil(block_count=0), "KV_OUT_OF_RANGE", id="no blocks"),
        pytest.param(spoil(block_count=2**31), "KV_OUT_OF_RANGE", id="absurdly many blocks"),
        pytest.param(spoil(first_layer=1), "KV_OUT_OF_RANGE", id="behind the layers"),
        pytest.param(spoil(layer_count=0), "KV_OUT_OF_RANGE", id="no layers"),
        pytest.param(spoil(layer_count=2**32 - 1), "KV_OUT_OF_RANGE", id="absurdly many layers"),
        pytest.param(spoil(token_count=7), "KV_WRONG_COUNT", id="a token less"),
        pytest.param(other_name, "KV_WRONG_HASH", id="another block"),
        pytest.param(name_missing, "KV_WRONG_HASH", id="name missing"),
        pytest.param(truncated, "KV_WRONG_SIZE", id="truncated"),
        pytest.param(too_long, "KV_WRONG_SIZE", id="too long"),
        pytest.param(empty, "KV_WRONG_SIZE", id="empty"),
        pytest.param(spoil(layer_count=2), "KV_WRONG_SIZE", id="more than it says"),
    ],
)
def test_wrong_blocks_are_refused_before_anything_is_written(
    stream: Stream, change: Callable[[KvMessage], None], reason: str
) -> None:
    message = stream.part(1, 2)
    change(message)
    refuse(stream, message, reason)


def test_the_partial_block_has_no_name_and_its_own_count(stream: Stream) -> None:
    message = stream.part(4, 1)
    assert message.blocks.token_count == 2
    message.blocks.block_hashes[0] = b"z" * 16
    refuse(stream, message, "KV_WRONG_HASH")


@given(
    kind=st.sampled_from(["header", "token", "blocks"]),
    place=st.floats(0, 1),
    bit=st.integers(0, 7),
)
@settings(max_examples=200)
def test_any_flipped_bit_is_seen(kind: str, place: float, bit: int) -> None:
    stream = Stream()
    message = stream.header()
    if kind != "header":
        stream.accept(message)
        message = stream.token() if kind == "token" else stream.part(1, 4)
    frame = bytearray(message.frame())
    frame[min(int(place * len(frame)), len(frame) - 1)] ^= 1 << bit
    with pytest.raises(KvIntegrityError):
        accept(stream.receiver, bytes(frame))
    assert np.isnan(stream.kv.memory).all()
    assert stream.received.num_verified_tokens == 4


@given(order=st.permutations(range(7)))
@settings(max_examples=100)
def test_messages_in_any_order_give_the_same_kv_or_an_error(order: list[int]) -> None:
    stream = Stream()
    parts = [stream.part(1, 2, layer, 1) for layer in range(3)]
    messages = [stream.header(), stream.token(), *parts, stream.part(3, 1), stream.part(4, 1)]
    if order[0] != 0:
        refuse(stream, messages[order[0]], "KV_NO_HEADER")
        return
    for index in order:
        stream.accept(messages[index])
    assert stream.received.is_complete
    assert stream.has(1, 5)


@given(lost=st.integers(2, 6), twice=st.integers(0, 6))
@settings(max_examples=50)
def test_what_is_lost_is_missing_and_what_is_doubled_is_refused(lost: int, twice: int) -> None:
    def make_messages(stream: Stream) -> list[KvMessage]:
        parts = [stream.part(1, 2, layer, 1) for layer in range(3)]
        return [stream.header(), stream.token(), *parts, stream.part(3, 1), stream.part(4, 1)]

    stream = Stream()
    for index, message in enumerate(make_messages(stream)):
        if index != lost:
            stream.accept(message)
    assert not stream.received.is_complete
    assert stream.received.num_verified_tokens == {2: 4, 3: 4, 4: 4, 5: 12, 6: 16}[lost]
    stream = Stream()
    for index, message in enumerate(make_messages(stream)):
        stream.accept(message)
        if index == twice:
            refuse(stream, message, "KV_DUPLICATE")
            return


def test_what_was_verified_before_an_error_stays_and_nothing_follows_it(stream: Stream) -> None:
    stream.accept(stream.part(1, 2))
    wrong = bytearray(stream.part(3, 1).frame())
    wrong[-1] ^= 1
    refuse_bytes(stream, bytes(wrong), "KV_WRONG_CHECKSUM")
    refuse(stream, stream.part(3, 2), "KV_AFTER_ERROR")
    assert stream.received.num_verified_tokens == 12
    assert stream.has(1, 3)


def test_a_failed_write_is_not_counted(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise KvIntegrityError("wrong size")

    monkeypatch.setattr(stream.kv, "write", fail)
    refuse(stream, stream.part(1, 2), "KV_INTEGRITY")


def test_another_stream_carries_only_what_is_missing(stream: Stream) -> None:
    stream.accept(stream.part(1, 2))
    # Behind a gap, and in some layers only: both are sent again.
    stream.accept(stream.part(4, 1))
    stream.accept(stream.part(3, 1, first_layer=0, num_layers=2))
    assert stream.received.num_verified_tokens == 12
    other_stamp = kv_transfer_pb2.KvStamp()
    other_stamp.CopyFrom(STAMP)
    other_stamp.worker_id = "prefill-1"
    stream.receiver = KvReceiver(stream.choose_transport, other_stamp, stream.received)
    header, repeated, rest = stream.header(2), stream.part(2, 1), stream.part(3, 2)
    for message in (header, repeated, rest):
        message.content.stamp.worker_id = "prefill-1"
    stream.accept(header)
    stream.accept(rest)
    assert stream.received.is_complete
    assert stream.has(1, 5)
    refuse(stream, repeated, "KV_OUT_OF_RANGE")


def test_a_sign_of_life_changes_nothing_and_comes_after_the_header_alone() -> None:
    stream = Stream()
    alive = KvMessage.of_frame(stream.encoder.alive())
    refuse(stream, alive, "KV_NO_HEADER")
    stream = Stream()
    stream.accept(stream.header())
    for _ in range(2):
        assert stream.accept(alive) == Accepted()
    assert stream.received.num_verified_tokens == 4
