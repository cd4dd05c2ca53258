"""Between workers whose KV is on devices of one host, messages say where it lies, and a device copies it.

As `host_memory`, but nobody maps anything here: both ends ask the process of their own engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagemesh.engine.device_memory import DeviceMemoryName
from pagemesh.engine.staged_kv import StagedKv
from pagemesh.kvship.named_blocks import NamedBlocksSending, check_copies, named_blocks
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


class DeviceMemoryReceiving:
    """The other end: the device sums up what it copies, and the sum is compared.

    Thus it does not matter when the sender frees its blocks: what it overwrites meanwhile is found out.
    """

    def __init__(self, kv: StagedKv, peer: DeviceMemoryName) -> None:
        self._kv = kv
        self._peer = peer

    def unload(
        self,
        blocks: kv_transfer_pb2.KvBlocks,
        payload: memoryview,
        block_ids: Sequence[int],
    ) -> int:
        """Copy the blocks; raises with KV_WRONG_SIZE, KV_OUT_OF_RANGE or KV_WRONG_CHECKSUM.

        UnavailableError with KV_MEMORY_UNREACHABLE when the engine's device does not reach the memory.
        """
        source_ids = named_blocks(blocks, payload, len(block_ids), self._peer.num_blocks)
        checksum = self._kv.copy_from(
            self._peer, source_ids, block_ids, blocks.first_layer, blocks.layer_count
        )
        check_copies(blocks, checksum)
        return len(block_ids) * blocks.layer_count * self._kv.layout.num_bytes_per_layer


def device_memory_name(header: kv_transfer_pb2.KvHeader) -> DeviceMemoryName:
    """What a header says of the sender's device."""
    named = header.device_memory
    return DeviceMemoryName(named.process_id, named.handle, named.byte_offset, named.block_count)
