"""A worker's server: start, serve, drain, close. A role adds its own RPCs to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import structlog

from pagemesh.config import WorkerConfig
from pagemesh.core.engine import Engine
from pagemesh.kv_transfer.fetch import KvTransferServicer
from pagemesh.kv_transfer.streams import FETCH, SPAN_NAMES
from pagemesh.membership.publisher import Publisher
from pagemesh.messages import links_to_proto
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.metrics_server import MetricsServer
from pagemesh.rpc.server import GrpcServer
from pagemesh.rpc.spans import ServedSpans
from pagemesh.telemetry.older_names import make_metrics
from pagemesh.telemetry.spans import start_traces
from pagemesh.worker.describe import WorkerDescriber, make_canary
from pagemesh.worker.gpu_metrics import show_gpu
from pagemesh.worker.reach import PEERS_SERVICE, add_peers
from pagemesh.worker.worker import Worker, assemble_worker, check_advertised, name_worker

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Role:
    """What makes a worker a prefill or a decode worker."""

    name: Literal["prefill", "decode"]
    service_name: str
    """Full name of the role's gRPC service."""
    add_services: Callable[[Worker, GrpcServer, AsyncExitStack], None]
    """Adds the role's servicers; what it pushes on the stack is closed after the last RPC ended."""


class WorkerServer:
    """One worker from its first health answer to its end.

    start: health answers NOT_SERVING, metrics are served. `serve(engine)`: takes over the engine,
    starts it, joins the mesh, and answers RPCs. close: leaves the mesh, drains, stops the engine.
    Close is idempotent and may follow at any point. An async context manager does start and close.
    """

    def __init__(self, config: WorkerConfig, role: Role) -> None:
        check_advertised(config)
        self._config = config
        self._role = role
        self._metrics = make_metrics(config.metrics)
        self._metrics_address: str | None = None
        self._stack = AsyncExitStack()
        self._identity = Identity.load(config.server.mesh, role.name, self._metrics)
        self._traces = start_traces(config.traces, role.name, self._metrics)
        self._server = GrpcServer(
            config.server,
            (role.service_name, FETCH.service.full_name, PEERS_SERVICE),
            ServedSpans(self._traces.tracer, SPAN_NAMES).around,
            # Whoever goes on with its requests needs their KV.
            drain_methods=(FETCH.path,),
            identity=self._identity,
        )
        self._describer = WorkerDescriber(config)
        self._server.describe_with(self._describer.describe)
        self._server.show_metrics(self._metrics.page)
        self.address = ""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            # Nobody else would close what has begun to serve.
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Bind the ports; ConfigError if one is taken."""
        # The last spans are those of the calls that end with the server.
        self._stack.push_async_callback(asyncio.to_thread, self._traces.close)
        self._stack.push_async_callback(self._server.close)
        self.address = await self._server.start()
        self._describer.loading(name_worker(self._config, self._role.name, self.address))
        config = self._config.server
        if config.metrics_port is not None:
            metrics_server = MetricsServer(
                config.host,
                config.metrics_port,
                self._metrics,
                self._identity,
            )
            self._stack.push_async_callback(asyncio.to_thread, metrics_server.close)
            self._metrics_address = metrics_server.address

    async def serve(self, engine: Engine) -> Worker:
        """Start the engine and answer RPCs from now on."""
        worker = assemble_worker(
            self._config,
            self._role.name,
            self.address,
            engine,
            self._metrics,
            self._identity,
            self._traces.tracer,
        )
        info = worker.info
        show_gpu(self._metrics, info.model_name, self._config.hardware)
        self._stack.callback(worker.transports.close)
        self._stack.push_async_callback(asyncio.to_thread, worker.block_threads.close)
        self._stack.push_async_callback(asyncio.to_thread, engine.stop)
        publisher = self._make_publisher(worker)
        self._role.add_services(worker, self._server, self._stack)
        self._server.add(FETCH.add_to_server, KvTransferServicer(worker).Fetch)
        add_peers(self._server, worker)
        # Once more, to be closed before everything that its RPCs use.
        self._stack.push_async_callback(self._server.close)
        worker.dispatcher.start()
        if publisher is not None:
            info.canary.CopyFrom(await asyncio.to_thread(make_canary, engine.info))
            publisher.start()
        self._describer.loaded(worker, publisher)
        await self._server.set_serving()
        log.info(
            "serving",
            address=self.address,
            metrics_address=self._metrics_address,
            worker_id=info.worker_id,
            epoch=info.epoch,
            model=info.model_name,
            num_blocks=info.block_count,
        )
        return worker

    async def close(self) -> None:
        """Leave the mesh, drain within the grace period, free everything. Idempotent."""
        await self._stack.aclose()

    def _make_publisher(self, worker: Worker) -> Publisher | None:
        """Who will tell the mesh of the worker; None when it is in no mesh."""
        kvstore = self._config.member.kvstore
        if kvstore is None:
            return None
        publisher = Publisher(
            kvstore,
            worker.info,
            worker.engine,
            lambda: links_to_proto(worker.links.speeds()),
            identity=self._identity,
        )
        worker.dispatcher.subscribe(publisher.on_step)
        # The first thing to happen when the worker stops: routers must not send it more requests.
        self._server.on_drain(publisher.close)
        return publisher
