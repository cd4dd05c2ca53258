"""Messages that name blocks in the sender's memory, whichever memory that is: made here, and checked here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pagemesh.errors import KvIntegrityError
from pagemesh.kvship.frames import Payload
from pagemesh.kvship.parts import KvPart
from pagemesh.v1 import kv_transfer_pb2


class Summed(Protocol):
    """KV in blocks that can be summed up where it lies."""

    def checksum(self, block_ids: Sequence[int], first_layer: int, num_layers: int) -> int:
        """Of these blocks in these layers, as the receiver takes it of its copies."""
        ...


class NamedBlocksSending:
    """Implements `SendingWay`: a message names the sender's blocks and has their checksum."""

    def __init__(
        self,
        kv: Summed,
        announce: Callable[[kv_transfer_pb2.KvHeader], None],
        max_part_bytes: int,
    ) -> None:
        """`announce` names the memory in a header."""
        self._kv = kv
        self._announce = announce
        self._max_part_bytes = max_part_bytes

    @property
    def max_part_bytes(self) -> int:
        """See `SendingWay`."""
        return self._max_part_bytes

    @property
    def needs_blocks_until_cancelled(self) -> bool:
        """Always: nobody but the receiver knows when it has copied the last one."""
        return True

    def announce(self, header: kv_transfer_pb2.KvHeader) -> None:
        """Name the memory."""
        self._announce(header)

    def load(
        self, blocks: kv_transfer_pb2.KvBlocks, part: KvPart, block_ids: Sequence[int]
    ) -> Payload | None:
        """Name the blocks."""
        blocks.memory_blocks.block_ids.extend(block_ids)
        blocks.memory_blocks.checksum = self._kv.checksum(
            block_ids, part.first_layer, part.num_layers
        )
        return None


def named_blocks(
    blocks: kv_transfer_pb2.KvBlocks, payload: memoryview, num_blocks: int, num_there: int
) -> Sequence[int]:
    """The sender's ids of a message's blocks, of `num_there` that it has.

    KvIntegrityError with KV_WRONG_SIZE or KV_OUT_OF_RANGE when there are not such.
    """
    source_ids = blocks.memory_blocks.block_ids
    if payload or len(source_ids) != num_blocks:
        raise KvIntegrityError(
            f"{num_blocks} blocks are said to lie in {len(source_ids)} of the sender's, "
            f"and {len(payload)} bytes travel with that",
            reason="KV_WRONG_SIZE",
        )
    if max(source_ids) >= num_there:
        raise KvIntegrityError(
            f"block {max(source_ids)} of the sender was named, which has {num_there}",
            reason="KV_OUT_OF_RANGE",
        )
    return source_ids


def check_copies(blocks: kv_transfer_pb2.KvBlocks, checksum: int) -> None:
    """Raise KvIntegrityError with KV_WRONG_CHECKSUM unless the copies' checksum is the message's."""
    if checksum != blocks.memory_blocks.checksum:
        raise KvIntegrityError(
            "blocks out of the sender's memory do not match their checksum",
            reason="KV_WRONG_CHECKSUM",
        )
