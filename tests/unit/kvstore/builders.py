"""Workers, blocks and a catalog to test with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from pagemesh.kvstore.catalog import Catalog
from pagemesh.kvstore.changes import ChangeLog
from pagemesh.kvstore.index import BlockIndex, IndexMetrics
from pagemesh.kvstore.known_peers import KnownPeers
from pagemesh.kvstore.members import Members
from pagemesh.kvstore.membership import LocalMembership
from pagemesh.kvstore.memory_index import MemoryIndex
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2
from tests.fakes.clock import FakeClock

FIRST_REVISION = 100
HEARTBEAT_INTERVAL = 1.0


def make_block(number: int) -> bytes:
    """A block hash, different for every number."""
    return number.to_bytes(16, "big")


def make_blocks(*numbers: int) -> list[bytes]:
    return [make_block(number) for number in numbers]


def make_spread_blocks(*numbers: int) -> list[bytes]:
    """Block hashes that differ in their first and last bytes too, as real ones do."""
    return [hashlib.blake2b(make_block(number), digest_size=16).digest() for number in numbers]


def make_worker(
    worker_id: str = "decode-0",
    *,
    epoch: int = 1,
    address: str = "127.0.0.1:7001",
    fingerprint: str = "model-a",
    model_name: str = "demo",
    num_blocks: int = 1000,
    block_size: int = 16,
) -> types_pb2.WorkerInfo:
    return types_pb2.WorkerInfo(
        worker_id=worker_id,
        epoch=epoch,
        role=types_pb2.WORKER_ROLE_DECODE,
        address=address,
        model_name=model_name,
        model_fingerprint=fingerprint,
        kv_layout=types_pb2.KvLayout(
            block_size=block_size, layer_count=2, kv_head_count=4, head_dim=8, dtype="float32"
        ),
        block_count=num_blocks,
        max_model_len=2048,
        max_num_seqs=8,
    )


@dataclass
class Store:
    """A catalog and the parts it is made of."""

    clock: FakeClock = field(default_factory=FakeClock)
    log: ChangeLog = field(default_factory=lambda: ChangeLog(FIRST_REVISION, capacity=8))
    index: BlockIndex = field(default_factory=MemoryIndex)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.members = Members(self.log, self.clock, HEARTBEAT_INTERVAL)
        membership = LocalMembership(self.members)
        self.index_metrics = IndexMetrics(self.metrics)
        known_peers = KnownPeers(self.clock)
        self.catalog = Catalog(
            self.members, membership, self.log, self.index, self.index_metrics, known_peers
        )
