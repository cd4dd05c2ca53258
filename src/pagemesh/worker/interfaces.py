"""What those use who move KV between workers, whatever stands around it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from pagemesh.kvship.parts import KvPart
from pagemesh.v1 import kv_transfer_pb2, types_pb2
from pagemesh.worker.kv_import import KvImport


class OutgoingStream(Protocol):
    """Makes the messages of one stream of KV; see `SentStream`."""

    @property
    def max_part_bytes(self) -> int:
        """Of KV that one part may have."""
        ...

    def header(self, num_blocks: int) -> bytes:
        """The first message of a stream of so many blocks."""
        ...

    def first_token(self, first_token: kv_transfer_pb2.FirstToken) -> bytes:
        """The message of the first token."""
        ...

    def alive(self) -> bytes:
        """The message that tells nothing but that the engine answers."""
        ...

    async def part(
        self,
        part: KvPart,
        block_ids: Sequence[int],
        block_hashes: Sequence[bytes],
        *,
        ready_seconds: float,
        num_reused_tokens: int,
    ) -> bytes:
        """The message of one part; cancelling waits for the copy's end."""
        ...

    def num_bytes(self, part: KvPart) -> int:
        """Of KV in one part."""
        ...

    async def finish(self) -> None:
        """Return when the blocks may be given back, behind the last message."""
        ...


class Sender(Protocol):
    """Begins the streams of one RPC that a worker serves; see `KvSender`."""

    def begin(self, caller: kv_transfer_pb2.HostIdentity, stream_nonce: int) -> OutgoingStream:
        """A stream to whoever makes the present call; InvalidRequestError when that has no deadline."""
        ...


class Importer(Protocol):
    """Fills granted blocks with KV from other workers; see `KvImporter`."""

    def start(self, kv: KvImport, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what fills the grant, out of `prefill` and `pull`; the end of the task gives the grant back."""
        ...

    async def prefill(
        self, kv: KvImport, peer: types_pb2.PeerWorker, source: kv_transfer_pb2.KvSource | None
    ) -> bool:
        """Have a prefill worker compute and send what is missing; whether everything came."""
        ...

    def wanted_from(self, kv: KvImport, source: kv_transfer_pb2.KvSource) -> Sequence[bytes]:
        """Names of the missing blocks that the source is thought to hold."""
        ...

    async def pull(self, kv: KvImport, source: kv_transfer_pb2.KvSource) -> None:
        """Fetch the blocks that are wanted from the source; there must be any."""
        ...

    async def close(self) -> None:
        """End all imports and close the channels. Idempotent."""
        ...
