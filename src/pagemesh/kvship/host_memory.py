"""Between workers on one host, messages say where KV lies, and the receiver copies it out of there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagemesh.engine.kv_memory import KvMemory, MemoryName
from pagemesh.engine.peer_memory import PeerMemory
from pagemesh.kvship.named_blocks import NamedBlocksSending, check_copies, named_blocks
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


class HostMemoryReceiving:
    """The other end: blocks are copied, then it is checked that the copies are right.

    Thus it does not matter when the sender frees its blocks: what it overwrites meanwhile is found out.
    """

    def __init__(self, memory: KvMemory, peer: PeerMemory) -> None:
        self._memory = memory
        self._peer = peer

    def unload(
        self,
        blocks: kv_transfer_pb2.KvBlocks,
        payload: memoryview,
        block_ids: Sequence[int],
    ) -> int:
        """Copy the blocks; raises with KV_WRONG_SIZE, KV_OUT_OF_RANGE or KV_WRONG_CHECKSUM."""
        source_ids = named_blocks(blocks, payload, len(block_ids), self._peer.blocks.shape[2])
        checksum = self._memory.copy_from(
            self._peer.blocks, source_ids, block_ids, blocks.first_layer, blocks.layer_count
        )
        check_copies(blocks, checksum)
        layout = self._memory.layout
        return len(block_ids) * blocks.layer_count * layout.num_bytes_per_layer


def memory_name(header: kv_transfer_pb2.KvHeader) -> MemoryName:
    """What a header says of the sender's memory."""
    named = header.memory
    return MemoryName(named.process_id, named.descriptor_number, named.block_count, named.nonce)
