"""The wire format of KV: parts of a prompt's blocks, and the messages of a stream that carry them, as bytes.

A message is a `KvChunk`, made and taken apart without protobuf's copies.

    0A <length of the content> <content> 11 <checksum, 8 bytes> 1A <length of the payload> <payload>

Any gRPC client reads it as the message of `kv_transfer.proto`; the last three parts are missing where
there is no payload. Written by hand because protobuf would copy the payload once into a message and
once more out of it; here each side copies it once. (The wire format: protobuf.dev, "Encoding".) So bytes objects are
filled after they were made, which Python's C API allows for one that nobody else has seen yet (docs.python.org,
"Bytes Objects", PyBytes_FromStringAndSize).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import xxhash
from google.protobuf.message import DecodeError

from pagemesh.core.kv import KvLayout
from pagemesh.errors import KvIntegrityError
from pagemesh.v1 import kv_transfer_pb2

_CONTENT_TAG: Final = 0x0A  # field 1, with a length
_CHECKSUM_TAG: Final = 0x11  # field 2, eight bytes
_PAYLOAD_TAG: Final = 0x1A  # field 3, with a length
_CHECKSUM_SIZE: Final = 8
MAX_CONTENT_BYTES: Final = 4 * 1024 * 1024
"""Hashes and numbers of the blocks of a prompt of three million tokens. A few bytes can unpack to many."""

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


_new = ctypes.pythonapi.PyBytes_FromStringAndSize
_new.restype = ctypes.py_object
_new.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)

_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.restype = ctypes.c_void_p
_address_of.argtypes = (ctypes.py_object,)


def uninitialized_bytes(num_bytes: int) -> tuple[bytes, memoryview]:
    """An object with anything in it, and a view to write all of it before the object is used.

    At least two bytes: shorter objects may be shared. The view must not be used after the object is gone.
    """
    assert num_bytes > 1, "shorter bytes may be somebody else's as well"
    made: bytes = _new(None, num_bytes)
    memory = (ctypes.c_ubyte * num_bytes).from_address(_address_of(made))
    return made, memoryview(memory).cast("B")


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


class PartCutter:
    """Cuts tokens [start, end) into parts of a limited size, or of one block in one layer.

    Each (block, layer) is in exactly one part, as soon as it is ready: a block when it is full, or when
    the last token is in it. What comes first in the prompt is cut first, so that a stream which breaks
    off leaves whole blocks behind; layers that are ready together travel together.
    """

    def __init__(self, layout: KvLayout, start: int, end: int, max_part_bytes: int) -> None:
        """`start` is a multiple of the block size; `end` need not be. Nothing is ready yet."""
        self._pairs_per_part = max(1, max_part_bytes // layout.num_bytes_per_layer)
        self._layout = layout
        self._end = end
        self._end_block = num_blocks_of(end, layout.block_size)
        first_block = start // layout.block_size
        # Of each layer: blocks in front of these are ready, or were cut. The first never grows with the
        # layer; the second may: late layers can be cut in larger runs than early ones were.
        self._ready = [first_block] * layout.num_layers
        self._cut = [first_block] * layout.num_layers

    @property
    def is_done(self) -> bool:
        """Whether everything was cut."""
        return min(self._cut) >= self._end_block

    def add_ready(self, num_tokens: int, num_layers: int) -> None:
        """KV of the prompt's tokens [0, num_tokens) is in layers [0, num_layers)."""
        if num_tokens >= self._end:
            end_block = self._end_block
        else:
            end_block = num_tokens // self._layout.block_size
        for layer in range(num_layers):
            self._ready[layer] = max(self._ready[layer], end_block)

    def next_part(self) -> KvPart | None:
        """Cut off the next part; None when nothing that is ready is left."""
        waiting = [i for i, ready in enumerate(self._ready) if self._cut[i] < ready]
        if not waiting:
            return None
        first_block = min(self._cut[layer] for layer in waiting)
        # Neighbours alone: a part is a run of layers, and one between two of them may have been cut.
        first_layer = next(layer for layer in waiting if self._cut[layer] == first_block)
        end_layer = first_layer + 1
        while end_layer in waiting and self._cut[end_layer] == first_block:
            end_layer += 1
        layers = range(first_layer, end_layer)
        end_block = min(self._ready[layer] for layer in layers)
        num_pairs = self._pairs_per_part
        num_blocks = min(end_block - first_block, max(1, num_pairs // len(layers)))
        layers = layers[: max(1, num_pairs // num_blocks)]
        for layer in layers:
            self._cut[layer] = first_block + num_blocks
        last_token = min(self._end, (first_block + num_blocks) * self._layout.block_size)
        return KvPart(
            first_block=first_block,
            num_blocks=num_blocks,
            first_layer=layers[0],
            num_layers=len(layers),
            num_tokens=last_token - first_block * self._layout.block_size,
        )


def cut_into_parts(layout: KvLayout, start: int, end: int, max_part_bytes: int) -> Iterator[KvPart]:
    """Cut tokens [start, end), all of which are ready; see `PartCutter`."""
    cutter = PartCutter(layout, start, end, max_part_bytes)
    cutter.add_ready(end, layout.num_layers)
    while (part := cutter.next_part()) is not None:
        yield part
