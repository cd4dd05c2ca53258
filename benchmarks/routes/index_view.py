"""What a kvstore knows of its workers' caches, and under which names it knows a prompt's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import grpc
from mesh import REQUEST_DEADLINE_S

from pagemesh.cache.block_hash import BLOCK_HASH_SIZE, hash_blocks, root_hash
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2


class Known(NamedTuple):
    """What is known of one worker."""

    info: types_pb2.WorkerInfo
    names: frozenset[bytes]
    """Of cached blocks."""

    def last_name(self, token_ids: Sequence[int]) -> bytes:
        """Of the last full block of a prompt, as this worker gives it."""
        info, layout = self.info, self.info.kv_layout
        root = root_hash(
            info.model_fingerprint, layout.block_size, layout.dtype, arithmetic=info.arithmetic
        )
        return hash_blocks(root, token_ids, layout.block_size)[-1]


def known_blocks(kvstore: str) -> dict[str, Known]:
    """By worker id, asked of the kvstore at host:port."""
    with grpc.insecure_channel(kvstore) as channel:
        stub = kvstore_pb2_grpc.KvStoreStub(channel)
        request = kvstore_pb2.SnapshotRequest(include_blocks=True)
        state = stub.Snapshot(request, timeout=REQUEST_DEADLINE_S)
    known = {}
    for entry in state.workers:
        packed = entry.block_hashes
        starts = range(0, len(packed), BLOCK_HASH_SIZE)
        names = frozenset(packed[start : start + BLOCK_HASH_SIZE] for start in starts)
        known[entry.worker.worker_id] = Known(entry.worker, names)
    return known
