"""The kvstore process: puts the parts together and runs them until a signal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog
import uvloop

from pagemesh.config import KvStoreConfig
from pagemesh.kvstore.backends import make_index, open_membership, open_store
from pagemesh.kvstore.catalog import Catalog
from pagemesh.kvstore.changes import ChangeLog
from pagemesh.kvstore.description import KvStoreDescriber
from pagemesh.kvstore.housekeeping import Housekeeper
from pagemesh.kvstore.index import IndexMetrics
from pagemesh.kvstore.known_peers import KnownPeers
from pagemesh.kvstore.members import Members
from pagemesh.kvstore.servicer import SPAN_NAMES, KvStoreServicer
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.metrics_server import MetricsServer
from pagemesh.rpc.server import GrpcServer, stop_on_signals
from pagemesh.rpc.settling import settle
from pagemesh.rpc.spans import ServedSpans
from pagemesh.rpc.tasks import cancel_to_end
from pagemesh.telemetry.logs import configure_logging
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.spans import start_traces
from pagemesh.v1 import kvstore_pb2_grpc

_log = structlog.get_logger(__name__)

SERVICE_NAME = "pagemesh.v1.KvStore"

TICKS_PER_HEARTBEAT = 2
"""How often per heartbeat interval silent workers are looked for."""


def run(config: KvStoreConfig) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError when a port is taken, or --index cannot be used."""
    configure_logging(config.server, "kvstore")
    uvloop.run(_run_until_signal(config))


async def _run_until_signal(config: KvStoreConfig) -> None:
    stop = stop_on_signals()
    service = KvStoreService(config)
    address = await service.start()
    _log.info("serving", address=address, metrics_address=service.metrics_address)
    settle()
    await stop.wait()
    await service.close()


class KvStoreService:
    """One kvstore: start, then close. `clock` gives the seconds by which heartbeats are judged."""

    def __init__(self, config: KvStoreConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._resources = AsyncExitStack()
        self.metrics_address: str | None = None
        """host:port of the metrics, once started; None when they are not served."""

    async def start(self) -> str:
        """Serve; gives the address. ConfigError, with nothing left behind, when a port is taken."""
        async with AsyncExitStack() as resources:
            address = await self._start(resources)
            self._resources = resources.pop_all()
        return address

    async def close(self) -> None:
        """End open streams, stop serving, free the ports. Idempotent."""
        await self._resources.aclose()

    async def _start(self, resources: AsyncExitStack) -> str:
        config = self._config
        metrics = Metrics()
        identity = Identity.load(config.server.mesh, "kvstore", metrics)
        if config.server.metrics_port is not None:
            exporter = MetricsServer(
                config.server.host,
                config.server.metrics_port,
                metrics,
                identity,
            )
            resources.callback(exporter.close)
            self.metrics_address = exporter.address

        log = ChangeLog()
        period = config.heartbeat_interval / TICKS_PER_HEARTBEAT
        store = await open_store(config, metrics, resources)
        index, index_metrics = make_index(config, store), IndexMetrics(metrics)
        members = Members(log, self._clock, config.heartbeat_interval)
        membership = await open_membership(store, members, log, self._clock, period, resources)
        known_peers = KnownPeers(self._clock)
        catalog = Catalog(members, membership, log, index, index_metrics, known_peers)
        housekeeper = Housekeeper(catalog, index, index_metrics, metrics, period, self._clock)
        housekeeping = asyncio.create_task(housekeeper.run(), name="housekeeping")
        resources.push_async_callback(cancel_to_end, housekeeping)

        draining = asyncio.Event()

        async def drain() -> None:
            draining.set()

        traces = start_traces(config.traces, "kvstore", metrics)
        resources.push_async_callback(asyncio.to_thread, traces.close)
        around = ServedSpans(traces.tracer, SPAN_NAMES).around
        server = GrpcServer(config.server, [SERVICE_NAME], around, identity=identity)
        server.describe_with(KvStoreDescriber(catalog, config.index).describe)
        server.show_metrics(metrics.page)
        resources.push_async_callback(server.close)
        server.on_drain(drain)
        address = await server.start()
        server.add(
            kvstore_pb2_grpc.add_KvStoreServicer_to_server,
            KvStoreServicer(catalog, config.heartbeat_interval, draining),
        )
        await server.set_serving()
        return address
