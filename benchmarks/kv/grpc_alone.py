"""What gRPC itself can do: one message of 1 MiB, sent again and again, and thrown away where it arrives.

Server and channel are those of the workers, but nothing is copied out of blocks or into them, and nothing
is checked. Whatever pagemesh does, KV in messages is not faster than this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import grpc
from child import Child, questions
from kv.raw_paths import MESSAGE_BYTES, Transfer

from pagemesh.config import MeshTlsConfig
from pagemesh.identity.roles import MeshRole
from pagemesh.malloc import keep_freed_memory
from pagemesh.rpc.channels import SHARED_OPTIONS, open_bulk_channel
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics

NO_TLS = MeshTlsConfig()

_DEADLINE_S = 60.0
_METHOD = "/benchmark/Send"


class GrpcAlone:
    """Two processes, one of which sends so many bytes to the other; by TLS with a worker's certificate."""

    def __init__(self, num_bytes: int, tls: MeshTlsConfig = NO_TLS) -> None:
        self._num_messages = num_bytes // MESSAGE_BYTES
        self._tls = tls

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._sender = stack.enter_context(
                Child("the sender by gRPC alone", _send, self._num_messages, self._tls)
            )
            port = self._sender.answer()
            self._receiver = stack.enter_context(
                Child("the receiver by gRPC alone", _receive, port, self._tls)
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def run(self) -> Transfer:
        """Send them once; RuntimeError when not all arrived."""
        expected = self._num_messages * MESSAGE_BYTES
        cpu_before = self._sender.ask()
        seconds, receiver_cpu, num_bytes = self._receiver.ask()
        if num_bytes != expected:
            raise RuntimeError(f"{num_bytes} of {expected} bytes were received")
        return Transfer(seconds, self._sender.ask() - cpu_before, receiver_cpu)


def _send(parent: Connection, num_messages: int, tls: MeshTlsConfig) -> None:
    """Body of the sender: its port, then its CPU time for each question."""
    asyncio.run(_serve(parent, num_messages, Identity.load(tls, "decode", Metrics())))


async def _serve(parent: Connection, num_messages: int, identity: Identity | None) -> None:
    message = bytes(MESSAGE_BYTES)

    async def send(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(num_messages):
            yield message

    server = grpc.aio.server(options=SHARED_OPTIONS)
    service, method = _METHOD.strip("/").split("/")
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(send)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    if identity is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", identity.server_credentials())
    await server.start()
    parent.send(port)
    await asyncio.to_thread(_tell_cpu_time, parent)
    await server.stop(0)


def _tell_cpu_time(parent: Connection) -> None:
    for _ in questions(parent):
        parent.send(time.process_time())


def _receive(parent: Connection, port: int, tls: MeshTlsConfig) -> None:
    """Body of the receiver: (seconds, CPU seconds, bytes) for each question."""
    keep_freed_memory()
    identity = Identity.load(tls, "decode", Metrics())
    with open_bulk_channel(f"127.0.0.1:{port}", MeshRole.WORKER, identity) as channel:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(_METHOD)
        for _ in questions(parent):
            began, cpu = time.perf_counter(), time.process_time()
            num_bytes = sum(len(message) for message in call(b"", timeout=_DEADLINE_S))
            parent.send((time.perf_counter() - began, time.process_time() - cpu, num_bytes))
