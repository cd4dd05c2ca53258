"""One message as bytes: protobuf reads it, nothing else than what was sent is taken, bit by bit."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemesh.errors import KvIntegrityError
from pagemesh.kv_transfer.frames import decode_frame, decode_varint, encode_frame, encode_varint
from pagemesh.v1 import kv_transfer_pb2
from tests.support.kv_bytes import payload_of

STAMP = kv_transfer_pb2.KvStamp(model_fingerprint="model", worker_id="prefill-0", epoch=7)
HEADER = kv_transfer_pb2.KvContent(stamp=STAMP, header=kv_transfer_pb2.KvHeader(block_count=3))
TOKEN = kv_transfer_pb2.KvContent(
    stamp=STAMP, first_token=kv_transfer_pb2.FirstToken(token_id=4711)
)
BLOCKS = kv_transfer_pb2.KvContent(
    stamp=STAMP,
    blocks=kv_transfer_pb2.KvBlocks(block_count=2, layer_count=1, block_hashes=[b"a" * 16, b""]),
)
PAYLOAD = bytes(range(256)) * 2


def refusal(message: bytes) -> str:
    with pytest.raises(KvIntegrityError) as caught:
        decode_frame(message)
    return caught.value.reason


def test_a_message_is_the_bytes_that_the_contract_says() -> None:
    content = b"\x0a\x0e\x0a\x01m\x1a\x09prefill-0"  # the stamp alone
    checksum = xxhash.xxh3_64(content + b"kv").digest()[::-1]
    message = encode_frame(
        kv_transfer_pb2.KvContent(
            stamp=kv_transfer_pb2.KvStamp(model_fingerprint="m", worker_id="prefill-0")
        ),
        payload_of(b"kv"),
    )
    assert message == b"\x0a\x10" + content + b"\x11" + checksum + b"\x1a\x02kv"


@pytest.mark.parametrize(
    ("content", "payload"),
    [
        pytest.param(HEADER, b"", id="header"),
        pytest.param(TOKEN, b"", id="first token"),
        pytest.param(BLOCKS, PAYLOAD, id="blocks"),
        pytest.param(BLOCKS, bytes(1 << 20), id="a mebibyte"),
    ],
)
def test_protobuf_reads_and_writes_the_same_bytes(
    content: kv_transfer_pb2.KvContent, payload: bytes
) -> None:
    message = encode_frame(content, payload_of(payload))
    chunk = kv_transfer_pb2.KvChunk.FromString(message)
    assert kv_transfer_pb2.KvContent.FromString(chunk.content) == content
    assert chunk.payload == payload
    assert chunk.checksum == xxhash.xxh3_64_intdigest(chunk.content + payload)
    assert chunk.SerializeToString() == message


def test_what_was_sent_is_received_in_one_piece_without_a_copy() -> None:
    message = encode_frame(BLOCKS, payload_of(PAYLOAD))
    frame = decode_frame(message)
    assert frame.content == BLOCKS
    assert frame.payload == PAYLOAD
    assert frame.payload.obj is message


@pytest.mark.parametrize(
    ("content", "payload"),
    [(HEADER, b""), (TOKEN, b""), (BLOCKS, PAYLOAD)],
    ids=["header", "first token", "blocks"],
)
def test_every_flipped_bit_is_seen(content: kv_transfer_pb2.KvContent, payload: bytes) -> None:
    message = encode_frame(content, payload_of(payload))
    for bit in range(8 * len(message)):
        spoiled = bytearray(message)
        spoiled[bit // 8] ^= 1 << bit % 8
        assert refusal(bytes(spoiled)) in ("KV_MALFORMED", "KV_WRONG_CHECKSUM"), bit


def test_a_flip_is_reported_by_where_it_is() -> None:
    message = encode_frame(BLOCKS, payload_of(PAYLOAD))
    content_size = BLOCKS.ByteSize()
    begin_of_checksum = 2 + content_size
    places = {
        "content's tag": (0, "KV_MALFORMED"),
        "content": (2, "KV_WRONG_CHECKSUM"),
        "checksum's tag": (begin_of_checksum, "KV_MALFORMED"),
        "checksum": (begin_of_checksum + 1, "KV_WRONG_CHECKSUM"),
        "payload's tag": (begin_of_checksum + 9, "KV_MALFORMED"),
        "payload's length": (begin_of_checksum + 10, "KV_MALFORMED"),
        "payload": (begin_of_checksum + 12, "KV_WRONG_CHECKSUM"),
        "end": (len(message) - 1, "KV_WRONG_CHECKSUM"),
    }
    for name, (place, reason) in places.items():
        spoiled = bytearray(message)
        spoiled[place] ^= 1
        assert refusal(bytes(spoiled)) == reason, name


def test_every_truncation_and_every_addition_is_seen() -> None:
    message = encode_frame(BLOCKS, payload_of(PAYLOAD))
    for length in range(len(message)):
        # Behind the checksum the message without its payload has a form, but another sum.
        assert refusal(message[:length]) in ("KV_MALFORMED", "KV_WRONG_CHECKSUM"), length
    assert refusal(message + b"\0") == "KV_MALFORMED"
    assert refusal(message + message) == "KV_MALFORMED"


def test_fields_in_another_order_are_refused() -> None:
    content = TOKEN.SerializeToString()
    checksum = b"\x11" + xxhash.xxh3_64(content).digest()[::-1]
    head = b"\x0a" + bytes([len(content)]) + content
    assert decode_frame(head + checksum).content == TOKEN
    assert refusal(checksum + head) == "KV_MALFORMED"
    assert refusal(head + checksum + checksum) == "KV_MALFORMED"
    # A payload of no bytes is left out.
    assert refusal(head + checksum + b"\x1a\x00") == "KV_MALFORMED"


def test_a_content_that_is_none_is_refused() -> None:
    content = b"\xff\xff"
    message = b"\x0a\x02" + content + b"\x11" + xxhash.xxh3_64(content).digest()[::-1]
    assert refusal(message) == "KV_MALFORMED"


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_arbitrary_bytes_are_refused(message: bytes) -> None:
    assert refusal(message) in ("KV_MALFORMED", "KV_WRONG_CHECKSUM")


@given(st.data())
@settings(max_examples=300)
def test_whatever_happens_to_a_message_is_seen(data: st.DataObject) -> None:
    message = encode_frame(BLOCKS, payload_of(PAYLOAD))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(message)), min_size=2, max_size=2)))
    first, middle, last = message[: cuts[0]], message[cuts[0] : cuts[1]], message[cuts[1] :]
    change = data.draw(st.sampled_from(["drop", "double", "zero", "reverse", "swap"]))
    spoiled = {
        "drop": first + last,
        "double": first + middle + middle + last,
        "zero": first + bytes(len(middle)) + last,
        "reverse": first + middle[::-1] + last,
        "swap": last + middle + first,
    }[change]
    if spoiled == message:
        decode_frame(spoiled)
    else:
        assert refusal(spoiled) in ("KV_MALFORMED", "KV_WRONG_CHECKSUM")


@pytest.mark.parametrize(
    ("number", "data"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**35 - 1, "ffffffff7f")],
)
def test_lengths_have_protobufs_form(number: int, data: str) -> None:
    assert encode_varint(number).hex() == data
    assert decode_varint(memoryview(bytes.fromhex(data + "ff"))) == (number, len(data) // 2)


@pytest.mark.parametrize("data", ["", "80", "8000", "ac8200", "ffffffffff01"])
def test_a_length_has_one_form(data: str) -> None:
    with pytest.raises(KvIntegrityError, match="a length is no number"):
        decode_varint(memoryview(bytes.fromhex(data)))


def test_content_that_could_unpack_to_anything_is_refused() -> None:
    names = kv_transfer_pb2.KvBlocks(block_hashes=[b""] * (2 * 1024 * 1024 - 10))
    assert len(decode_frame(encode_frame(kv_transfer_pb2.KvContent(blocks=names))).payload) == 0
    names.block_hashes.extend([b""] * 100)
    message = encode_frame(kv_transfer_pb2.KvContent(blocks=names))
    assert refusal(message) == "KV_MALFORMED"
