"""A prefill worker that lies, stalls or stops, as a test tells it to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

import grpc

from pagemesh.decode.service import DECODE_ROLE
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.prefill.servicer import PrefillServicer
from pagemesh.rpc.server import GrpcServer
from pagemesh.v1 import kv_transfer_pb2, prefill_pb2
from pagemesh.worker.fetch import KvTransferServicer
from pagemesh.worker.kv_importer import KvImporter
from pagemesh.worker.kv_methods import FETCH, PREFILL
from pagemesh.worker.server import Role
from pagemesh.worker.worker import Worker
from tests.support.kv_messages import KvMessage

Chunks = AsyncGenerator[bytes]
"""The messages of a stream, as they are sent."""


def kind_of(chunk: bytes) -> str:
    """Which of "header", "blocks", "first_token" and "alive" a message is."""
    return str(KvMessage.of_frame(chunk).kind)


class Saboteur:
    """A prefill worker whose stream goes through `sabotage`."""

    def __init__(self, honest: PrefillServicer, sabotage: Callable[[Chunks], Chunks]) -> None:
        self._honest = honest
        self._sabotage = sabotage

    async def Prefill(  # noqa: N802  # the name of the RPC
        self,
        request: prefill_pb2.PrefillRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> Chunks:
        honest = self._honest.Prefill(request, context)
        async with aclosing(honest), aclosing(self._sabotage(honest)) as spoiled:
            async for chunk in spoiled:
                yield chunk


def sabotaged_role(sabotage: Callable[[Chunks], Chunks]) -> Role:
    def add_services(worker: Worker, server: GrpcServer, stack: AsyncExitStack) -> None:
        importer = KvImporter(worker)
        stack.push_async_callback(importer.close)
        honest = PrefillServicer(worker, importer)
        server.add(PREFILL.add_to_server, Saboteur(honest, sabotage).Prefill)

    return Role("prefill", PREFILL_ROLE.service_name, add_services)


class FetchSaboteur:
    """A holder of blocks whose stream goes through `sabotage`."""

    def __init__(self, honest: KvTransferServicer, sabotage: Callable[[Chunks], Chunks]) -> None:
        self._honest = honest
        self._sabotage = sabotage

    async def Fetch(  # noqa: N802  # the name of the RPC
        self,
        request: kv_transfer_pb2.FetchRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> Chunks:
        honest = self._honest.Fetch(request, context)
        async with aclosing(honest), aclosing(self._sabotage(honest)) as spoiled:
            async for chunk in spoiled:
                yield chunk


def sabotaged_holder(sabotage: Callable[[Chunks], Chunks]) -> Role:
    """A decode worker that holds what it computed, but does not hand it out as it should."""

    def add_services(worker: Worker, server: GrpcServer, stack: AsyncExitStack) -> None:
        DECODE_ROLE.add_services(worker, server, stack)
        # Of two handlers of one method, the first one is taken.
        server.add(FETCH.add_to_server, FetchSaboteur(KvTransferServicer(worker), sabotage).Fetch)

    return Role("decode", DECODE_ROLE.service_name, add_services)
