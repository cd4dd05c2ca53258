"""Channels to other processes of the mesh, all with the same options.

Timeouts and retries are those of `protos/pagemesh/v1/service_config.json`. Its copy beside the stubs
is made together with them, so that an installed package has it, and a test compares the two.

No timeout in it may be shorter than a few seconds: gRPC counts them from a cycle clock that can be two
seconds off, and calls with 1 s ended with DEADLINE_EXCEEDED at once. Callers set shorter ones.

`RawStream` is for methods whose responses are a stream of bytes: for bulk, which protobuf would copy once more at each
end. The bytes must be the serialized message that the contract names: any client with generated stubs, and
reflection, may be at the other end.

`host_identity` says where a process runs, as others can compare it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import grpc
import grpc.experimental
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.tasks import one_ahead
from pagemesh.v1 import kv_transfer_pb2

MAX_MESSAGE_BYTES: Final = 40 * 1024 * 1024
"""KV travels in messages of about 1 MiB; a prompt of a million tokens has about 4 MiB."""

KEEPALIVE_TIME_MS: Final = 500
"""After so long without a byte from the peer it is asked for one; a channel asks at most once a second."""
KEEPALIVE_TIMEOUT_MS: Final = 3_000
"""A peer that does not answer for so long is gone: one that froze is noticed within five seconds.

Pings are answered by gRPC's own threads, whatever holds the GIL; but on a machine that has too much to do each
thread on the way may wait for its turn for more than half a second, and a slow peer is not a dead one."""

SHARED_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    # This one limits bytes that the peer's kernel does not acknowledge, the next one pings that the
    # peer does not answer: gRPC itself would wait a minute for those.
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
"""Options of channels and servers alike: both ends want to know that the other one is alive."""

_CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *SHARED_OPTIONS,
    # A worker that was restarted at its old address is tried again soon, not after minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # So long an attempt to connect may take; the time between two is the other ones' alone.
    ("grpc.min_reconnect_backoff_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # One connection for each channel: bulk KV must not sit in front of a session's tokens.
    ("grpc.use_local_subchannel_pool", 1),
    # Processes of a mesh reach each other directly, whatever proxy the environment names.
    ("grpc.enable_http_proxy", 0),
)

BULK_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""What a stream of KV may have under way: enough for 10 Gbit/s at 3 ms. A receiver that stops reading is
sent no more; gRPC's own guess at a link's capacity has no such bound."""

_BULK_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", BULK_WINDOW_BYTES),
    # A message is one frame; else it is cut into pieces of 16 KiB, each with work at both ends.
    ("grpc.http2.max_frame_size", BULK_WINDOW_BYTES),
)


@cache
def service_config() -> str:
    """The service config as JSON text."""
    return resources.files("pagemesh.v1").joinpath("service_config.json").read_text("utf-8")


def channel_options(peer: MeshRole | None = None) -> list[tuple[str, int | str]]:
    """What every channel of the mesh is opened with, blocking ones too; with TLS, to what `peer` names."""
    options: list[tuple[str, int | str]] = [*_CHANNEL_OPTIONS]
    options.append(("grpc.service_config", service_config()))
    if peer is not None:
        # Certificates name roles, and no addresses.
        options.append(("grpc.ssl_target_name_override", peer.dns_name))
    return options


def open_channel(
    address: str, peer: MeshRole | None = None, identity: Identity | None = None
) -> grpc.aio.Channel:
    """A channel to host:port; connects on first use. Whoever opens it closes it.

    With an identity it speaks TLS, to nobody but a `peer`, and shows the certificate of now for ever: whoever
    keeps channels opens new ones for new connections when the identity's generation has changed.
    """
    if identity is None:
        return grpc.aio.insecure_channel(address, options=channel_options())
    credentials = identity.channel_credentials()
    return grpc.aio.secure_channel(address, credentials, options=channel_options(peer))


def open_blocking_channel(
    address: str, peer: MeshRole | None = None, identity: Identity | None = None
) -> grpc.Channel:
    """Likewise, for threads that wait."""
    return _open_blocking(address, peer, identity, ())


def open_bulk_channel(
    address: str, peer: MeshRole | None = None, identity: Identity | None = None
) -> grpc.Channel:
    """Likewise, for streams of messages of about 1 MiB, of which BULK_WINDOW_BYTES may be under way.

    A stream is read by the thread that iterates over it; no other thread of gRPC's stands between. Each
    call is ended by `end_bulk_call`.
    """
    return _open_blocking(address, peer, identity, _BULK_OPTIONS)


def _open_blocking(
    address: str,
    peer: MeshRole | None,
    identity: Identity | None,
    further: tuple[tuple[str, int], ...],
) -> grpc.Channel:
    if identity is None:
        return grpc.insecure_channel(address, options=[*channel_options(), *further])
    options = [*channel_options(peer), *further]
    return grpc.secure_channel(address, identity.channel_credentials(), options=options)


class BulkCall(Protocol):
    """A running call of a bulk channel, whose messages one thread reads; any thread may cancel it."""

    def __iter__(self) -> Iterator[bytes]: ...

    def cancel(self) -> bool:
        """Have it end soon; whoever reads it gets an error."""
        ...


def end_bulk_call(call: BulkCall) -> None:
    """Cancel a call of a bulk channel, unless it is over, and have gRPC forget it. Idempotent.

    Only where no thread reads it any more. gRPC keeps a call, some 20 KB, until its last event was taken,
    and an iterator that was cancelled takes none (`_SingleThreadedRendezvous._next`).
    It does not wait for the peer: a cancelled call's last event is there at once.
    """
    call.cancel()
    running: Any = call
    while running._state.due:
        running._consume_next_event()


def host_identity(*, on_device: bool = False) -> kv_transfer_pb2.HostIdentity | None:
    """Of this process, with its KV on a device or not; None where no process reads another's memory."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return kv_transfer_pb2.HostIdentity(
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip(),
            pid_namespace=Path("/proc/self/ns/pid").stat().st_ino,
            user_id=os.geteuid(),
            on_device=on_device,
        )
    except OSError:
        return None


RequestT = TypeVar("RequestT", bound=Message)

Behavior = Callable[[RequestT, grpc.aio.ServicerContext[Any, Any]], AsyncGenerator[bytes]]
"""Serves one call."""


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

    def add_to_server(self, behavior: Behavior[RequestT], server: grpc.aio.Server) -> None:
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
