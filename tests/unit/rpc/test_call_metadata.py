"""What is added to an answer reaches the caller with its first message, whoever added it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc

from pagemesh.config import ServerConfig
from pagemesh.rpc.call_context import add_answer_metadata
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.server import GrpcServer
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc


class TalkingServicer(kvstore_pb2_grpc.KvStoreServicer):
    """Both of its RPCs say how many messages were made when the first was sent."""

    num_made = 0

    async def Lookup(  # noqa: N802  # the name of the RPC
        self, request: kvstore_pb2.LookupRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> kvstore_pb2.LookupResponse:
        add_answer_metadata(lambda: (("x-made", str(self.num_made)), ("x-second", "2")))
        self.num_made += 1
        return kvstore_pb2.LookupResponse()

    ListWatchers = Publish = Register = Snapshot = None  # type: ignore[assignment]  # not called here

    async def Watch(  # noqa: N802  # the name of the RPC
        self, request: kvstore_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[kvstore_pb2.WatchResponse]:
        add_answer_metadata(lambda: (("x-made", str(self.num_made)),))
        add_answer_metadata(lambda: (("x-second", "2"),))
        for revision in range(3):
            self.num_made += 1
            yield kvstore_pb2.WatchResponse(revision=revision)


async def told(call: Any) -> dict[str, str]:
    return {key: value for key, value in await call.initial_metadata() if key.startswith("x-")}


async def test_what_is_added_is_asked_for_when_the_first_message_is_sent() -> None:
    server = GrpcServer(ServerConfig(grace_period=0.1), ["pagemesh.v1.KvStore"])
    address = await server.start()
    try:
        server.add(kvstore_pb2_grpc.add_KvStoreServicer_to_server, TalkingServicer())
        await server.set_serving()
        async with open_channel(address) as channel, asyncio.timeout(10):
            stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
            call = stub.Watch(kvstore_pb2.WatchRequest())
            assert len([message async for message in call]) == 3
            assert await told(call) == {"x-made": "1", "x-second": "2"}
            lookup = stub.Lookup(kvstore_pb2.LookupRequest())
            await lookup
            # What was added to the call before is not told again.
            assert await told(lookup) == {"x-made": "4", "x-second": "2"}
    finally:
        await server.close()
