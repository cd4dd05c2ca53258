"""How the bytes of KV get from one worker's blocks into another's: chosen once for each stream.

Both ends agree by the stream's header. The messages, their order and their checks are the same for all
transports; only what stands for the KV of a part differs: its bytes; or, between workers on one host, where it lies
in the sender's memory, out of which the receiver copies it; or where it lies on a device, out of which another device
does. Then nobody maps anything here: both ends ask the process of their own engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from pagemesh.core.kv import KvAccess, KvLayout
from pagemesh.errors import KvIntegrityError
from pagemesh.kv_memory.memory import KvMemory, MemoryName
from pagemesh.kv_memory.peer import PeerMemory
from pagemesh.kv_memory.staged import DeviceMemoryName, StagedKv
from pagemesh.kv_transfer import frames
from pagemesh.kv_transfer.frames import KvPart, Payload
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
        return frames.MAX_PAYLOAD_BYTES

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

    def __init__(self, layout: KvLayout, num_there: int, copy: CopyBlocks) -> None:
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


HOST_PART_BYTES: Final = 8 * 1024 * 1024
"""So much is copied at once: what a message costs is small beside it, and the sender sums up one part while
the receiver copies the one before."""


def host_memory_sending(memory: KvMemory, name: MemoryName) -> NamedBlocksSending:
    """The sender's end; `name` is what `memory.share` gave."""

    def announce(header: kv_transfer_pb2.KvHeader) -> None:
        header.memory.process_id = name.process_id
        header.memory.descriptor_number = name.descriptor
        header.memory.block_count = name.num_blocks
        header.memory.nonce = name.nonce

    return NamedBlocksSending(memory, announce, HOST_PART_BYTES)


def host_memory_receiving(memory: KvMemory, peer: PeerMemory) -> NamedBlocksReceiving:
    """The other end: whoever unloads copies. `peer` is open as long as anybody does."""

    def copy(
        source_ids: Sequence[int], block_ids: Sequence[int], first_layer: int, num_layers: int
    ) -> int:
        # Asked for each time: whoever kept the array would keep the memory behind its end.
        return memory.copy_from(peer.blocks, source_ids, block_ids, first_layer, num_layers)

    return NamedBlocksReceiving(memory.layout, peer.name.num_blocks, copy)


def memory_name(header: kv_transfer_pb2.KvHeader) -> MemoryName:
    """What a header says of the sender's memory."""
    named = header.memory
    return MemoryName(named.process_id, named.descriptor_number, named.block_count, named.nonce)


DEVICE_PART_BYTES: Final = 32 * 1024 * 1024
"""More than between memories of the host, for a device copies faster, and each message costs both sides a
question to their engine's process. A guess: not measured."""


def device_memory_sending(kv: StagedKv, name: DeviceMemoryName) -> NamedBlocksSending:
    """The sender's end; `name` is of the memory in which `kv` lies."""

    def announce(header: kv_transfer_pb2.KvHeader) -> None:
        header.device_memory.process_id = name.process_id
        header.device_memory.handle = name.handle
        header.device_memory.byte_offset = name.offset
        header.device_memory.block_count = name.num_blocks

    return NamedBlocksSending(kv, announce, DEVICE_PART_BYTES)


def device_memory_receiving(kv: StagedKv, peer: DeviceMemoryName) -> NamedBlocksReceiving:
    """The other end: the device sums up what it copies.

    The copy raises UnavailableError with KV_MEMORY_UNREACHABLE when the device does not reach the memory.
    """
    return NamedBlocksReceiving(kv.layout, peer.num_blocks, partial(kv.copy_from, peer))


def device_memory_name(header: kv_transfer_pb2.KvHeader) -> DeviceMemoryName:
    """What a header says of the sender's device."""
    named = header.device_memory
    return DeviceMemoryName(named.process_id, named.handle, named.byte_offset, named.block_count)
