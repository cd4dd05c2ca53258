"""Messages that name blocks in the sender's memory, whichever memory that is: made here, and checked here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pagemesh.core.kv import BlockLayout
from pagemesh.errors import KvIntegrityError
from pagemesh.kv_transfer.frames import Payload
from pagemesh.kv_transfer.parts import KvPart
from pagemesh.v1 import kv_transfer_pb2


class Summed(Protocol):
    """KV in blocks that can be summed up where it lies."""

    def checksum(self, block_ids: Sequence[int], first_layer: int, num_layers: int) -> int:
        """Of these blocks in these layers, as the receiver takes it of its copies."""
        ...


CopyBlocks = Callable[[Sequence[int], Sequence[int], int, int], int]
"""From the sender's blocks to granted ones, by their ids, in a run of layers: the first one and how many.

Gives the checksum of the copies.
"""


class NamedBlocksSending:
    """Implements `SendingTransport`: a message names the sender's blocks and has their checksum."""

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


class NamedBlocksReceiving:
    """The other end: blocks are copied, then it is checked that the copies are right.

    Thus it does not matter when the sender frees its blocks: what it overwrites meanwhile is found out.
    """

    def __init__(self, layout: BlockLayout, num_there: int, copy: CopyBlocks) -> None:
        """The sender has `num_there` blocks, of which `copy` copies some."""
        self._layout = layout
        self._num_there = num_there
        self._copy = copy

    def unload(
        self,
        blocks: kv_transfer_pb2.KvBlocks,
        payload: memoryview,
        block_ids: Sequence[int],
    ) -> int:
        """Copy the blocks; raises with KV_WRONG_SIZE, KV_OUT_OF_RANGE or KV_WRONG_CHECKSUM."""
        named = blocks.memory_blocks
        self._check_named(named.block_ids, payload, len(block_ids))
        checksum = self._copy(named.block_ids, block_ids, blocks.first_layer, blocks.layer_count)
        if checksum != named.checksum:
            raise KvIntegrityError(
                "blocks out of the sender's memory do not match their checksum",
                reason="KV_WRONG_CHECKSUM",
            )
        return self._layout.num_bytes_of(len(block_ids), blocks.layer_count)

    def _check_named(self, source_ids: Sequence[int], payload: memoryview, num_blocks: int) -> None:
        if payload or len(source_ids) != num_blocks:
            raise KvIntegrityError(
                f"{num_blocks} blocks are said to lie in {len(source_ids)} of the sender's, "
                f"and {len(payload)} bytes travel with that",
                reason="KV_WRONG_SIZE",
            )
        if max(source_ids) >= self._num_there:
            raise KvIntegrityError(
                f"block {max(source_ids)} of the sender was named, which has {self._num_there}",
                reason="KV_OUT_OF_RANGE",
            )
