"""Gathers the metrics of the whole mesh when somebody asks one of its routers for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

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

_ALL_S: Final = 3.0
"""For all of them together."""

_MOST_AT_ONCE: Final = 32

Credentials = Sequence[tuple[str, str]]


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
        async with asyncio.timeout(3 * _ALL_S):
            return await asyncio.shield(self._running)

    async def _gather(self, credentials: Credentials) -> bytes:
        own_address, others = await self._fellows.find()
        routers = {
            address: self._ask(address, MeshRole.ROUTER, (), credentials) for address in others
        }
        workers = {
            worker.worker_id: self._ask(worker.address, MeshRole.DECODE, OF_WORKERS, ())
            for worker in self._directory.workers()
            if worker.role == types_pb2.WORKER_ROLE_DECODE
            and worker.info.model_name in self._model_names
        }
        answers = await _answers([*routers.values(), *workers.values()])
        pages = answers[: len(routers)], answers[len(routers) :]
        router_pages, worker_pages = (
            {name: page for name, page in zip(names, found, strict=True) if page is not None}
            for names, found in zip((routers, workers), pages, strict=True)
        )
        return mesh_page(own_address, self._metrics.page(), router_pages, worker_pages)

    async def _ask(
        self, address: str, role: MeshRole, names: Sequence[str], credentials: Credentials
    ) -> bytes | None:
        """What a process shows of these metrics, or of all; None when it does not answer."""
        request = process_pb2.MetricsRequest(names=names)
        try:
            async with self._places, open_channel(address, role, self._identity) as channel:
                stub: process_pb2_grpc.ProcessAsyncStub = process_pb2_grpc.ProcessStub(channel)
                answer = await stub.Metrics(request, timeout=_TIMEOUT_S, metadata=credentials)
        except grpc.aio.AioRpcError as error:
            _log.info("metrics_unknown", address=address, code=error.code().name)
            return None
        return answer.page


async def _answers(asks: Sequence[Coroutine[Any, Any, bytes | None]]) -> list[bytes | None]:
    """What all of them gave; None for those that had no time."""
    answers: list[bytes | None] = [None] * len(asks)

    async def keep(place: int, ask: Coroutine[Any, Any, bytes | None]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_ALL_S):
                answers[place] = await ask

    async with asyncio.timeout(2 * _ALL_S):
        await asyncio.gather(*(keep(place, ask) for place, ask in enumerate(asks)))
    return answers
