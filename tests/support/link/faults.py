"""What can go wrong with one KV stream, as plain data, and how that is done to its messages.

Knows bytes and, where a fault is meant for one kind of message, the frame of `KvChunk`; no gRPC calls.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from pagemesh.v1 import kv_transfer_pb2


class Kind(StrEnum):
    """What happens."""

    FLIP = "flip"
    """One bit of a message."""
    TRUNCATE = "truncate"
    """A message loses its end."""
    DROP = "drop"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    """A message changes places with the next one."""
    REPLAY = "replay"
    """A message is replaced by one of the same kind from an earlier stream."""
    END = "end"
    """The stream ends in front of a message as if nothing were missing."""
    ABORT = "abort"
    """It ends there with UNAVAILABLE."""
    SEVER = "sever"
    """The connection breaks there, and with it all its streams."""
    STALL = "stall"
    """Nothing more comes for a while."""
    HOLD = "hold"
    """Nothing more comes until the sender is gone or the receiver gives up."""


class Part(StrEnum):
    """Where in a message a bit is flipped."""

    ANY = "any"
    CONTENT = "content"
    CHECKSUM = "checksum"
    PAYLOAD = "payload"


MESSAGE_KINDS: Final = ("header", "blocks", "first_token", "last_blocks")
"""The last blocks are blocks as well: those behind which no KV is missing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Happens once in a stream, at a message."""

    kind: Kind
    message: str = "any"
    """Kind of the message, of MESSAGE_KINDS; any counts all."""
    index: int = 0
    """How many of that kind come before it."""
    part: Part = Part.ANY
    place: float = 0.5
    """In [0, 1): which bit is flipped, or how much of a message is left."""
    seconds: float = 0.0
    """How long it stalls."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Fault:
        """The reverse."""
        return cls(**{**values, "kind": Kind(values["kind"]), "part": Part(values["part"])})


class SeveredError(Exception):
    """The connection is to be broken."""


class AbortedError(Exception):
    """The stream is to end with an error."""


SEEDED_KINDS: Final = tuple(kind for kind in Kind if kind is not Kind.HOLD)


def draw_fault(draws: random.Random, longest_stall: float) -> Fault:
    """A fault by chance; what is about KV hits its messages more often than the others."""
    kind = draws.choice(SEEDED_KINDS)
    message = draws.choice((*MESSAGE_KINDS, "blocks", "blocks", "any"))
    return Fault(
        kind=kind,
        message=message,
        index=draws.randrange(4) if message in ("blocks", "any") else 0,
        part=draws.choice(tuple(Part)),
        place=draws.random(),
        seconds=draws.random() * longest_stall,
    )


class Stage:
    """How far one stream is, by its messages."""

    def __init__(self) -> None:
        self._num_missing = 0  # blocks x layers

    def kinds_of(self, message: bytes) -> tuple[str, ...]:
        """What the next message may be called, the plainest first."""
        chunk = kv_transfer_pb2.KvChunk.FromString(message)
        content = kv_transfer_pb2.KvContent.FromString(chunk.content)
        kind = content.WhichOneof("kind") or "empty"
        if kind == "header":
            num_layers = content.stamp.kv_layout.layer_count
            self._num_missing = content.header.block_count * num_layers
        if kind != "blocks":
            return (kind,)
        self._num_missing -= content.blocks.block_count * content.blocks.layer_count
        return ("blocks",) if self._num_missing else ("blocks", "last_blocks")


def part_of(message: bytes, part: Part) -> tuple[int, int]:
    """Where a part of a message lies: its first byte and the one behind its last; all where it has none."""
    chunk = kv_transfer_pb2.KvChunk.FromString(message)
    size = len(message)
    payload_begin = size - len(chunk.payload)
    if part is Part.PAYLOAD and chunk.payload:
        return payload_begin, size
    content_begin = message.index(chunk.content)
    content_end = content_begin + len(chunk.content)
    if part is Part.CONTENT:
        return content_begin, content_end
    if part is Part.CHECKSUM:
        return content_end + 1, content_end + 9  # behind the tag of the field
    return 0, size


def flip(message: bytes, part: Part, place: float) -> bytes:
    """The message with another bit in that part."""
    begin, end = part_of(message, part)
    bit = int(place * (end - begin) * 8)
    spoiled = bytearray(message)
    spoiled[begin + bit // 8] ^= 1 << bit % 8
    return bytes(spoiled)


class Spoiler:
    """Does faults to streams, one to each; remembers messages that it may replay."""

    def __init__(self, on_injected: Callable[[Fault], None]) -> None:
        self._on_injected = on_injected
        self._seen: dict[str, bytes] = {}

    async def spoil(
        self,
        messages: AsyncIterator[bytes],
        fault: Fault | None,
        sender_gone: Callable[[], Awaitable[object]],
    ) -> AsyncGenerator[bytes]:
        """The messages of one stream with one fault in them; SeveredError or AbortedError end it.

        `sender_gone` waits until the sender is gone, not merely done.
        """
        num_before = 0
        held: bytes | None = None  # a message that waits for the next one to pass
        replayable = dict(self._seen)
        stage = Stage()
        async for message in messages:
            kinds = stage.kinds_of(message)
            kind = kinds[0]
            self._seen[kind] = message
            if held is not None:
                yield message
                yield held
                held = None
                continue
            if fault is None or fault.message not in ("any", *kinds):
                yield message
                continue
            num_before += 1
            if num_before <= fault.index:
                yield message
                continue
            done, fault = fault, None
            if done.kind is Kind.REORDER:
                held = message
                self._on_injected(done)
                continue
            if done.kind is Kind.REPLAY and replayable.get(kind) in (None, message):
                yield message
                continue
            self._on_injected(done)
            if done.kind is Kind.END:
                return
            if done.kind is Kind.HOLD:
                await sender_gone()
                raise AbortedError
            for spoiled in await _apply(done, message, replayable.get(kind, b"")):
                yield spoiled
        if held is not None:
            yield held


async def _apply(fault: Fault, message: bytes, replayed: bytes) -> tuple[bytes, ...]:
    """What is sent in place of the message."""
    match fault.kind:
        case Kind.FLIP:
            return (flip(message, fault.part, fault.place),)
        case Kind.TRUNCATE:
            return (message[: int(fault.place * len(message))],)
        case Kind.DROP:
            return ()
        case Kind.DUPLICATE:
            return message, message
        case Kind.REPLAY:
            return (replayed,)
        case Kind.ABORT:
            raise AbortedError
        case Kind.SEVER:
            raise SeveredError
        case Kind.STALL:
            await asyncio.sleep(fault.seconds)
    return (message,)
