"""A prefill worker that lies, stalls or stops, as a test tells it to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

import grpc

from pagemesh.decode.service import DECODE_ROLE
from pagemesh.kv_transfer.fetch import KvTransferServicer
from pagemesh.kv_transfer.importer import KvImporter
from pagemesh.kv_transfer.streams import FETCH, PREFILL
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.prefill.servicer import PrefillServicer
from pagemesh.rpc.channels import Behavior, RequestT
from pagemesh.rpc.server import GrpcServer
from pagemesh.worker.server import Role
from pagemesh.worker.worker import Worker
from tests.support.kv_messages import KvMessage

Chunks = AsyncGenerator[bytes]
"""The messages of a stream, as they are sent."""


def kind_of(chunk: bytes) -> str:
    """Which of "header", "blocks", "first_token" and "alive" a message is."""
    return str(KvMessage.of_frame(chunk).kind)


def sabotaged(
    honest: Behavior[RequestT], sabotage: Callable[[Chunks], Chunks]
) -> Behavior[RequestT]:
    """A method whose stream goes through `sabotage`."""

    async def serve(request: RequestT, context: grpc.aio.ServicerContext[Any, Any]) -> Chunks:
        chunks = honest(request, context)
        async with aclosing(chunks), aclosing(sabotage(chunks)) as spoiled:
            async for chunk in spoiled:
                yield chunk

    return serve


def sabotaged_role(sabotage: Callable[[Chunks], Chunks]) -> Role:
    def add_services(worker: Worker, server: GrpcServer, stack: AsyncExitStack) -> None:
        importer = KvImporter(worker, "remote_pull")
        stack.push_async_callback(importer.close)
        honest = PrefillServicer(worker, importer)
        server.add(PREFILL.add_to_server, sabotaged(honest.Prefill, sabotage))

    return Role("prefill", PREFILL_ROLE.service_name, add_services)


def sabotaged_holder(sabotage: Callable[[Chunks], Chunks]) -> Role:
    """A decode worker that holds what it computed, but does not hand it out as it should."""

    def add_services(worker: Worker, server: GrpcServer, stack: AsyncExitStack) -> None:
        DECODE_ROLE.add_services(worker, server, stack)
        # Of two handlers of one method, the first one is taken.
        server.add(FETCH.add_to_server, sabotaged(KvTransferServicer(worker).Fetch, sabotage))

    return Role("decode", DECODE_ROLE.service_name, add_services)
