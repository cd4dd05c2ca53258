"""One message of a KV stream as bytes: a `KvChunk`, made and taken apart without protobuf's copies.

    0A <length of the content> <content> 11 <checksum, 8 bytes> 1A <length of the payload> <payload>

Any gRPC client reads it as the message of `kv_transfer.proto`; the last three parts are missing where
there is no payload. Written by hand because protobuf would copy the payload once into a message and
once more out of it; here each side copies it once. (The wire format: protobuf.dev, "Encoding".)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import xxhash
from google.protobuf.message import DecodeError

from pagemesh.errors import KvIntegrityError
from pagemesh.kv_transfer.new_bytes import uninitialized_bytes
from pagemesh.v1 import kv_transfer_pb2

_CONTENT_TAG: Final = 0x0A  # field 1, with a length
_CHECKSUM_TAG: Final = 0x11  # field 2, eight bytes
_PAYLOAD_TAG: Final = 0x1A  # field 3, with a length
_CHECKSUM_SIZE: Final = 8
MAX_CONTENT_BYTES: Final = 4 * 1024 * 1024
"""Names and numbers of the blocks of a prompt of three million tokens. A few bytes can unpack to many."""

_LONGEST_VARINT: Final = 5
"""Bytes; enough for lengths below 2^35, and gRPC's messages are below 2^32."""


class Frame(NamedTuple):
    """A message whose checksum was right."""

    content: kv_transfer_pb2.KvContent
    payload: memoryview
    """A view of the message's bytes; empty where it has no KV."""


class Payload(NamedTuple):
    """KV that a message is to carry."""

    num_bytes: int
    fill: Callable[[memoryview], None]
    """Writes it into so many bytes."""


def encode_frame(content: kv_transfer_pb2.KvContent, payload: Payload | None = None) -> bytes:
    """The message; the payload is written where it belongs, and summed up there."""
    head = content.SerializeToString()
    front = bytes((_CONTENT_TAG,)) + encode_varint(len(head)) + head + bytes((_CHECKSUM_TAG,))
    checksum_end = len(front) + _CHECKSUM_SIZE
    tail = b""
    if payload is not None:
        tail = bytes((_PAYLOAD_TAG,)) + encode_varint(payload.num_bytes)
    begin = checksum_end + len(tail)
    message, view = uninitialized_bytes(begin + (payload.num_bytes if payload is not None else 0))
    view[: len(front)] = front
    view[checksum_end:begin] = tail
    checksum = xxhash.xxh3_64(head)
    if payload is not None:
        payload.fill(view[begin:])
        checksum.update(view[begin:])
    view[len(front) : checksum_end] = checksum.intdigest().to_bytes(_CHECKSUM_SIZE, "little")
    return message


def decode_frame(message: bytes) -> Frame:
    """Take a message apart and check its sum; the payload is not copied.

    KvIntegrityError with the reason KV_MALFORMED for anything but what `encode_frame` makes, or
    KV_WRONG_CHECKSUM. Nothing of the content is looked at before its checksum was found to be right.
    """
    head, checksum, payload = _split(memoryview(message))
    if len(head) > MAX_CONTENT_BYTES:
        raise _malformed(f"its content has {len(head)} bytes, more than {MAX_CONTENT_BYTES}")
    actual = xxhash.xxh3_64(head)
    actual.update(payload)
    if actual.intdigest() != checksum:
        raise KvIntegrityError(
            f"a message of {len(message)} bytes does not match its checksum",
            reason="KV_WRONG_CHECKSUM",
        )
    try:
        content = kv_transfer_pb2.KvContent.FromString(bytes(head))
    except DecodeError as error:
        raise _malformed("its content is no KvContent") from error
    return Frame(content, payload)


def _split(message: memoryview) -> tuple[memoryview, int, memoryview]:
    """Content, checksum and payload."""
    head, rest = _take_field(message, _CONTENT_TAG)
    if len(rest) < 1 + _CHECKSUM_SIZE or rest[0] != _CHECKSUM_TAG:
        raise _malformed("it has no checksum behind its content")
    checksum = int.from_bytes(rest[1 : 1 + _CHECKSUM_SIZE], "little")
    rest = rest[1 + _CHECKSUM_SIZE :]
    if not rest:
        return head, checksum, rest
    payload, rest = _take_field(rest, _PAYLOAD_TAG)
    if rest or not payload:
        raise _malformed(f"it has a payload of {len(payload)} bytes and {len(rest)} behind it")
    return head, checksum, payload


def _take_field(message: memoryview, tag: int) -> tuple[memoryview, memoryview]:
    """The bytes of the field that the message begins with, and what follows it."""
    if not message or message[0] != tag:
        raise _malformed(
            f"a field begins with {bytes(message[:1]).hex() or 'nothing'}, not {tag:02x}"
        )
    length, size = decode_varint(message[1:])
    begin = 1 + size
    if begin + length > len(message):
        raise _malformed(f"a field of {length} bytes has only {len(message) - begin}")
    return message[begin : begin + length], message[begin + length :]


def encode_varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that another byte follows."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def decode_varint(data: memoryview) -> tuple[int, int]:
    """The number that the data begins with, and the bytes that it takes.

    KvIntegrityError unless those are the fewest that it can have, so that each number has one form.
    """
    number = 0
    for index, group in enumerate(data[:_LONGEST_VARINT]):
        number |= (group & 0x7F) << 7 * index
        if group < 0x80:
            if index and not group:
                break
            return number, index + 1
    raise _malformed("a length is no number")


def _malformed(what: str) -> KvIntegrityError:
    return KvIntegrityError(f"a message is malformed: {what}", reason="KV_MALFORMED")
