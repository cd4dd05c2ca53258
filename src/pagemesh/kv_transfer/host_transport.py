"""Between workers on one host, messages say where KV lies, and the receiver copies it out of there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagemesh.kv_memory.memory import KvMemory, MemoryName
from pagemesh.kv_memory.peer import PeerMemory
from pagemesh.kv_transfer.named_blocks import NamedBlocksReceiving, NamedBlocksSending
from pagemesh.v1 import kv_transfer_pb2

MAX_PART_BYTES: Final = 8 * 1024 * 1024
"""So much is copied at once: what a message costs is small beside it, and the sender sums up one part while
the receiver copies the one before."""


def host_memory_sending(memory: KvMemory, name: MemoryName) -> NamedBlocksSending:
    """The sender's end; `name` is what `memory.share` gave."""

    def announce(header: kv_transfer_pb2.KvHeader) -> None:
        header.memory.process_id = name.process_id
        header.memory.descriptor_number = name.descriptor
        header.memory.block_count = name.num_blocks
        header.memory.nonce = name.nonce

    return NamedBlocksSending(memory, announce, MAX_PART_BYTES)


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
