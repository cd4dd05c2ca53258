"""The kvstore: who is in the mesh, and which worker holds which block."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import buckets
from pagemesh.telemetry.metrics.specs import (
    CounterSpec,
    GaugeSpec,
    HistogramSpec,
    Label,
    Process,
    Unit,
)

_KVSTORE: Final = (Process.KVSTORE,)

KVSTORE_WORKERS: Final = GaugeSpec(
    name="pagemesh:kvstore_workers",
    help="Workers that are members, wherever they publish.",
    unit=Unit.WORKERS,
    processes=_KVSTORE,
    look_at="nothing: when it is lower than what was deployed, the log of a worker that is missing",
)
KVSTORE_REMOTE_WORKERS: Final = GaugeSpec(
    name="pagemesh:kvstore_remote_workers",
    help="Members that publish to other replicas of the kvstore.",
    unit=Unit.WORKERS,
    processes=_KVSTORE,
    look_at="nothing: with several replicas it is their part of the members",
)
INDEX_STORE_UP: Final = GaugeSpec(
    name="pagemesh:index_store_up",
    help="Whether the Redis that the index is kept in answers: 1 or 0.",
    unit=Unit.FLAG,
    processes=_KVSTORE,
    only_with="--index redis://…",
    look_at="nothing: 1 is good. At 0, whether Redis runs, and its own log",
)
INDEX_BLOCKS: Final = GaugeSpec(
    name="pagemesh:index_blocks",
    help="Blocks in the index, counted once for each worker that holds them.",
    unit=Unit.BLOCKS,
    processes=_KVSTORE,
    look_at="pagemesh:index_bytes",
)
INDEX_DISTINCT_BLOCKS: Final = GaugeSpec(
    name="pagemesh:index_distinct_blocks",
    help="Blocks in the index, counted once.",
    unit=Unit.BLOCKS,
    processes=_KVSTORE,
    look_at="pagemesh:index_blocks beside it: how often a block is held twice",
)
INDEX_BYTES: Final = GaugeSpec(
    name="pagemesh:index_bytes",
    help="Memory that the blocks in the index take, in this process or in Redis, measured on some of them.",
    unit=Unit.BYTES,
    processes=_KVSTORE,
    look_at="the bound that was set (--max-index-bytes); above it, blocks are evicted",
)
INDEX_BYTES_PER_BLOCK: Final = GaugeSpec(
    name="pagemesh:index_bytes_per_block",
    help="Memory that one block in the index takes.",
    unit=Unit.BYTES,
    processes=_KVSTORE,
    look_at="nothing: it depends on the number of workers",
)
INDEX_BLOCKS_EVICTED: Final = CounterSpec(
    name="pagemesh:index_blocks_evicted",
    help="Blocks that the index gave up for want of room.",
    unit=Unit.BLOCKS,
    processes=_KVSTORE,
    look_at="whether the index may have more memory: evicted blocks are held, but nobody is sent to them",
)
INDEX_BLOCKS_STORED: Final = CounterSpec(
    name="pagemesh:index_blocks_stored",
    help="Blocks that workers reported as stored.",
    unit=Unit.BLOCKS,
    processes=_KVSTORE,
    look_at="pagemesh:index_blocks_removed: when both are high, the workers' caches are too small for the prompts",
)
INDEX_BLOCKS_REMOVED: Final = CounterSpec(
    name="pagemesh:index_blocks_removed",
    help="Blocks that workers reported as removed.",
    unit=Unit.BLOCKS,
    processes=_KVSTORE,
    look_at="as for pagemesh:index_blocks_stored",
)
INDEX_BLOCKS_REFUSED: Final = CounterSpec(
    name="pagemesh:index_blocks_refused",
    help="Blocks refused because the worker announced fewer.",
    unit=Unit.BLOCKS,
    processes=_KVSTORE,
    look_at="the kvstore's log: a worker counts its blocks wrongly",
)
INDEX_DIGESTS: Final = CounterSpec(
    name="pagemesh:index_digests",
    help="Times that the index was compared with a worker's own count.",
    unit=Unit.COUNT,
    processes=_KVSTORE,
    look_at="nothing: it grows with traffic",
)
INDEX_DIVERGENCES: Final = CounterSpec(
    name="pagemesh:index_divergences",
    help="Of these, those where the two differed.",
    unit=Unit.COUNT,
    processes=_KVSTORE,
    look_at="the kvstore's log, and restarts of kvstores and workers; each is followed by a snapshot that heals it",
)
INDEX_DIVERGED_BLOCKS: Final = CounterSpec(
    name="pagemesh:index_diverged_blocks",
    help="Blocks that a worker held and the index did not know (missing), or the reverse (surplus), as counted when "
    "a snapshot came behind a difference.",
    unit=Unit.BLOCKS,
    labels=(Label("kind", ("missing", "surplus")),),
    processes=_KVSTORE,
    look_at="surplus: requests are sent to blocks that are gone. missing: they pass by blocks that are there",
)
INDEX_LOOKUP_SECONDS: Final = HistogramSpec(
    name="pagemesh:index_lookup_seconds",
    help="Time in the index for one lookup.",
    unit=Unit.SECONDS,
    buckets=buckets.LOOKUP,
    processes=_KVSTORE,
    look_at="Redis, if the index is kept there; else how busy the kvstore is (process_cpu_seconds)",
)
