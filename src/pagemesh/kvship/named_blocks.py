"""What every message is checked for that names blocks in the sender's memory, whichever memory that is."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.errors import KvIntegrityError
from pagemesh.v1 import kv_transfer_pb2


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
