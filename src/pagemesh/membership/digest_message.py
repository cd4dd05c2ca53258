"""What a cache holds, in short, as a message: written and read by workers and by the kvstore."""

from __future__ import annotations

from pagemesh.cache.block_hash import BLOCK_HASH_SIZE
from pagemesh.cache.digest import CacheDigest
from pagemesh.v1 import kvstore_pb2


def digest_to_proto(digest: CacheDigest) -> kvstore_pb2.CacheDigest:
    """The two numbers as they are sent."""
    return kvstore_pb2.CacheDigest(
        block_count=digest.num_blocks, names_xor=digest.names_xor.to_bytes(BLOCK_HASH_SIZE)
    )


def digest_from_proto(message: kvstore_pb2.CacheDigest) -> CacheDigest:
    """The two numbers as they were sent."""
    return CacheDigest(message.block_count, int.from_bytes(message.names_xor))
