"""How the bytes of KV get from one worker's blocks into another's: chosen once for each stream.

Both ends agree by the stream's header. The messages, their order and their checks are the same for all
transports; only what stands for the KV of a part differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from pagemesh.core.kv import KvAccess
from pagemesh.errors import KvIntegrityError
from pagemesh.kv_transfer import parts
from pagemesh.kv_transfer.frames import Payload
from pagemesh.kv_transfer.parts import KvPart
from pagemesh.v1 import kv_transfer_pb2


class SendingTransport(Protocol):
    """The sender's end; any thread. The caller holds the blocks."""

    @property
    def max_part_bytes(self) -> int:
        """Of KV that one message stands for."""
        ...

    @property
    def needs_blocks_until_cancelled(self) -> bool:
        """Whether the receiver may still need the blocks when all messages were sent."""
        ...

    def announce(self, header: kv_transfer_pb2.KvHeader) -> None:
        """Say in the header which transport it is."""
        ...

    def load(
        self, blocks: kv_transfer_pb2.KvBlocks, part: KvPart, block_ids: Sequence[int]
    ) -> Payload | None:
        """Complete the message of one part, whose blocks have these ids; gives its payload, if it has one."""
        ...


class ReceivingTransport(Protocol):
    """The receiver's end; one message at a time."""

    def unload(
        self,
        blocks: kv_transfer_pb2.KvBlocks,
        payload: memoryview,
        block_ids: Sequence[int],
    ) -> int:
        """Bring the KV of a message into granted blocks, verified; gives its bytes.

        The message is right but for what this transport alone knows: KvIntegrityError when that is wrong.
        The blocks count as verified only when this has returned.
        """
        ...


class PayloadSending:
    """KV travels in the messages."""

    def __init__(self, kv: KvAccess) -> None:
        self._kv = kv

    @property
    def max_part_bytes(self) -> int:
        return parts.MAX_PAYLOAD_BYTES

    @property
    def needs_blocks_until_cancelled(self) -> bool:
        """Never: what was sent is a copy."""
        return False

    def announce(self, header: kv_transfer_pb2.KvHeader) -> None:
        """This one needs no words."""

    def load(
        self, blocks: kv_transfer_pb2.KvBlocks, part: KvPart, block_ids: Sequence[int]
    ) -> Payload | None:
        """The KV itself."""
        num_bytes = self._kv.layout.num_bytes_of(len(block_ids), part.num_layers)
        return Payload(
            num_bytes, partial(self._kv.read, block_ids, part.first_layer, part.num_layers)
        )


class PayloadReceiving:
    """The other end of `PayloadSending`: nothing is written that was not found to be right before."""

    def __init__(self, kv: KvAccess) -> None:
        self._kv = kv

    def unload(
        self,
        blocks: kv_transfer_pb2.KvBlocks,
        payload: memoryview,
        block_ids: Sequence[int],
    ) -> int:
        """Write the payload, whose checksum was right; KV_WRONG_SIZE when it is not that of the blocks."""
        num_bytes = self._kv.layout.num_bytes_of(len(block_ids), blocks.layer_count)
        if len(payload) != num_bytes:
            raise KvIntegrityError(
                f"{len(block_ids)} blocks have {len(payload)} bytes, not {num_bytes}",
                reason="KV_WRONG_SIZE",
            )
        self._kv.write(block_ids, blocks.first_layer, blocks.layer_count, payload)
        return num_bytes
