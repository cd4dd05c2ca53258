"""What one process needs to move KV: its engine, transports and links, and threads that work on leased blocks.

The threads let the loop go on, and never work longer than the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, ParamSpec, TypeVar

from opentelemetry.trace import NoOpTracer, Tracer

from pagemesh.core.engine import Engine
from pagemesh.kv_transfer.links import KvFailures, LinkMeter
from pagemesh.kv_transfer.transport_choice import KvTransports
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.tasks import until_done
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2

P = ParamSpec("P")
T = TypeVar("T")

NUM_THREADS: Final = 2
"""Copies and checksums are bound by memory and the GIL: more threads make nothing faster."""


class BlockThreads:
    """Threads that copy blocks."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="kv")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` on a thread; returns or raises only when it is over.

        Also a cancelled caller waits for it, and is cancelled then: the caller gives up its lease next,
        and a thread that still touched the blocks would corrupt whoever gets them.
        """
        work = self._executor.submit(function, *args, **kwargs)
        future = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not work.cancel():
                await until_done(future)
            raise

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        self._executor.shutdown()


@dataclass(frozen=True, slots=True)
class KvEndpoint:
    """One running engine as other workers see it, and what moves KV between them."""

    info: types_pb2.WorkerInfo
    engine: Engine
    block_threads: BlockThreads
    links: LinkMeter
    """How fast KV comes from the other workers."""
    transports: KvTransports
    """How KV travels between this worker and others."""
    failures: KvFailures
    """Who did not deliver KV to this worker."""
    metrics: Metrics
    identity: Identity | None
    """What it shows to others; None without TLS."""
    tracer: Tracer = field(default_factory=NoOpTracer, kw_only=True)
    """What makes its spans."""
