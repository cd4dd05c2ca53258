"""Between workers whose KV is on devices of one host, messages say where it lies, and a device copies it.

As `host_transport`, but nobody maps anything here: both ends ask the process of their own engine.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from pagemesh.kv_memory.staged import DeviceMemoryName, StagedKv
from pagemesh.kv_transfer.named_blocks import NamedBlocksReceiving, NamedBlocksSending
from pagemesh.v1 import kv_transfer_pb2

MAX_PART_BYTES: Final = 32 * 1024 * 1024
"""More than between memories of the host, for a device copies faster, and each message costs both sides a
question to their engine's process. A guess: not measured."""


def device_memory_sending(kv: StagedKv, name: DeviceMemoryName) -> NamedBlocksSending:
    """The sender's end; `name` is of the memory in which `kv` lies."""

    def announce(header: kv_transfer_pb2.KvHeader) -> None:
        header.device_memory.process_id = name.process_id
        header.device_memory.handle = name.handle
        header.device_memory.byte_offset = name.offset
        header.device_memory.block_count = name.num_blocks

    return NamedBlocksSending(kv, announce, MAX_PART_BYTES)


def device_memory_receiving(kv: StagedKv, peer: DeviceMemoryName) -> NamedBlocksReceiving:
    """The other end: the device sums up what it copies.

    The copy raises UnavailableError with KV_MEMORY_UNREACHABLE when the device does not reach the memory.
    """
    return NamedBlocksReceiving(kv.layout, peer.num_blocks, partial(kv.copy_from, peer))


def device_memory_name(header: kv_transfer_pb2.KvHeader) -> DeviceMemoryName:
    """What a header says of the sender's device."""
    named = header.device_memory
    return DeviceMemoryName(named.process_id, named.handle, named.byte_offset, named.block_count)
