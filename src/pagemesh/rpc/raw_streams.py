"""Methods whose responses are a stream of bytes: for bulk, which protobuf would copy once more a side.

The bytes must be the serialized message that the contract names: any client with generated stubs, and
reflection, may be at the other end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from pagemesh.rpc.one_ahead import one_ahead

RequestT = TypeVar("RequestT", bound=Message)

Behavior = Callable[[RequestT, grpc.aio.ServicerContext[Any, Any]], AsyncGenerator[bytes]]
"""Serves one call."""


class _Server(Protocol):
    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler], /) -> None: ...


@dataclass(frozen=True, slots=True)
class RawStream(Generic[RequestT]):
    """A method with one request and raw responses, for its server and its clients."""

    service: ServiceDescriptor
    method: str
    request_type: type[RequestT]

    @property
    def path(self) -> str:
        """As gRPC names the method."""
        return f"/{self.service.full_name}/{self.method}"

    def add_to_server(self, behavior: Behavior[RequestT], server: _Server) -> None:
        """Serve the method; like the generated functions of that name, for `GrpcServer.add`.

        Each message is made while the one before is sent.
        """

        async def serve(
            request: RequestT, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncGenerator[bytes]:
            async with aclosing(one_ahead(behavior(request, context))) as messages:
                async for message in messages:
                    yield message

        handler: grpc.RpcMethodHandler[RequestT, bytes] = grpc.unary_stream_rpc_method_handler(
            # grpc declares the behaviors of its threaded servers only.
            cast(Any, serve),
            request_deserializer=self.request_type.FromString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(self.service.full_name, {self.method: handler}),)
        )

    def client(self, channel: grpc.Channel) -> grpc.UnaryStreamMultiCallable[RequestT, bytes]:
        """What calls the method; its calls are read by threads."""
        return channel.unary_stream(
            self.path, request_serializer=self.request_type.SerializeToString
        )
