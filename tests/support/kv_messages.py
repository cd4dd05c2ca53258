"""Messages of KV streams as tests look at them and change them."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Self

from pagemesh.kv_transfer.frames import encode_frame
from pagemesh.kv_transfer.receiver import Accepted, KvReceiver
from pagemesh.v1 import kv_transfer_pb2
from tests.support.kv_bytes import payload_of


@dataclass
class KvMessage:
    """What one message says, and the KV that it carries."""

    content: kv_transfer_pb2.KvContent
    payload: bytes

    @classmethod
    def of_chunk(cls, chunk: kv_transfer_pb2.KvChunk) -> Self:
        """Of the message that a client with generated stubs receives."""
        return cls(kv_transfer_pb2.KvContent.FromString(chunk.content), chunk.payload)

    @classmethod
    def of_frame(cls, frame: bytes) -> Self:
        """Of its bytes."""
        return cls.of_chunk(kv_transfer_pb2.KvChunk.FromString(frame))

    @property
    def kind(self) -> str | None:
        return self.content.WhichOneof("kind")

    @property
    def header(self) -> kv_transfer_pb2.KvHeader:
        return self.content.header

    @property
    def blocks(self) -> kv_transfer_pb2.KvBlocks:
        return self.content.blocks

    @property
    def first_token(self) -> kv_transfer_pb2.FirstToken:
        return self.content.first_token

    def frame(self) -> bytes:
        """The message with a checksum that is right for what it says."""
        return encode_frame(self.content, payload_of(self.payload))


async def read_messages(chunks: AsyncIterable[kv_transfer_pb2.KvChunk]) -> list[KvMessage]:
    """All messages of a stream."""
    return [KvMessage.of_chunk(chunk) async for chunk in chunks]


def accept(receiver: KvReceiver, frame: bytes) -> Accepted:
    """Have a receiver check the bytes of one message and use it."""
    return receiver.take(receiver.open(frame))
