"""Gathers the metrics of the whole mesh when somebody asks one of its routers for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import grpc
import structlog

from pagemesh.identity.roles import MeshRole
from pagemesh.membership.directory import Directory
from pagemesh.membership.fellows import Fellows
from pagemesh.router.mesh_page import OF_WORKERS, mesh_page
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import process_pb2, process_pb2_grpc, types_pb2

_log = structlog.get_logger(__name__)

_TIMEOUT_S: Final = 2.0
"""A process that does not answer is left out. Together with looking for them it is less than scrapers wait."""

_MOST_AT_ONCE: Final = 32

Credentials = Sequence[tuple[str, str]]


class _Process(NamedTuple):
    address: str
    role: MeshRole


class PageGathering:
    """Of one router. Belongs to one event loop."""

    def __init__(
        self,
        metrics: Metrics,
        directory: Directory,
        address: str,
        model_names: Sequence[str],
        identity: Identity | None,
    ) -> None:
        """`address` is where the router listens, as it tells the kvstore."""
        self._metrics = metrics
        self._directory = directory
        self._model_names = frozenset(model_names)
        self._identity = identity
        self._fellows = Fellows(directory.kvstores, address, identity)
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)
        self._running: asyncio.Task[bytes] | None = None

    async def page(self, credentials: Credentials) -> bytes:
        """The page of the mesh; other routers are shown the caller's credentials. All who ask meanwhile get the same."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._gather(credentials), name="metrics-page")
        return await asyncio.shield(self._running)

    async def _gather(self, credentials: Credentials) -> bytes:
        own_address, others = await self._fellows.find()
        routers = {address: _Process(address, MeshRole.ROUTER) for address in others}
        workers = {
            worker.worker_id: _Process(worker.address, MeshRole.DECODE)
            for worker in self._directory.workers()
            if worker.role == types_pb2.WORKER_ROLE_DECODE
            and worker.info.model_name in self._model_names
        }
        router_pages, worker_pages = await asyncio.gather(
            self._ask_all(routers, (), credentials), self._ask_all(workers, OF_WORKERS, ())
        )
        return mesh_page(own_address, self._metrics.page(), router_pages, worker_pages)

    async def _ask_all(
        self, processes: Mapping[str, _Process], names: Sequence[str], credentials: Credentials
    ) -> dict[str, bytes]:
        """What they show of these metrics, or of all; without those that do not answer."""
        request = process_pb2.MetricsRequest(names=names)
        asked = [self._ask(process, request, credentials) for process in processes.values()]
        pages = zip(processes, await asyncio.gather(*asked), strict=True)
        return {name: page for name, page in pages if page is not None}

    async def _ask(
        self, process: _Process, request: process_pb2.MetricsRequest, credentials: Credentials
    ) -> bytes | None:
        try:
            async with (
                self._places,
                open_channel(process.address, process.role, self._identity) as channel,
            ):
                stub: process_pb2_grpc.ProcessAsyncStub = process_pb2_grpc.ProcessStub(channel)
                answer = await stub.Metrics(request, timeout=_TIMEOUT_S, metadata=credentials)
        except grpc.aio.AioRpcError as error:
            _log.info("metrics_unknown", address=process.address, code=error.code().name)
            return None
        return answer.page
