"""What gRPC itself can do: one message of 1 MiB, sent again and again, and thrown away where it arrives.

Server and channel are those of the workers, but nothing is copied out of blocks or into them, and nothing
is checked. Whatever pagemesh does, KV in messages is not faster than this.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import grpc
from kv.raw_paths import MESSAGE_BYTES, Transfer

from pagemesh.rpc.channels import SHARED_OPTIONS, open_bulk_channel
from pagemesh.worker.heap import keep_freed_memory

_DEADLINE_S = 60.0
_METHOD = "/benchmark/Send"


class GrpcAlone:
    """Two processes, one of which sends so many bytes to the other."""

    def __init__(self, num_bytes: int) -> None:
        num_messages = num_bytes // MESSAGE_BYTES
        self._num_bytes = num_messages * MESSAGE_BYTES
        self._sender, self._sender_process = _start(_send, num_messages)
        port = self._answer(self._sender)
        self._receiver, self._receiver_process = _start(_receive, port)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in (self._receiver, self._sender):
            connection.close()
        for process in (self._receiver_process, self._sender_process):
            process.join(_DEADLINE_S)

    def run(self) -> Transfer:
        """Send them once; RuntimeError when not all arrived."""
        self._sender.send(None)
        cpu_before = self._answer(self._sender)
        self._receiver.send(None)
        seconds, receiver_cpu, num_bytes = self._answer(self._receiver)
        if num_bytes != self._num_bytes:
            raise RuntimeError(f"{num_bytes} of {self._num_bytes} bytes were received")
        self._sender.send(None)
        return Transfer(seconds, self._answer(self._sender) - cpu_before, receiver_cpu)

    def _answer(self, connection: Connection) -> Any:
        if not connection.poll(_DEADLINE_S):
            raise RuntimeError(f"a peer said nothing for {_DEADLINE_S:g} s")
        return connection.recv()


def _start(
    body: Callable[[Connection, int], None], argument: int
) -> tuple[Connection, multiprocessing.process.BaseProcess]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=body, args=(theirs, argument), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _send(parent: Connection, num_messages: int) -> None:
    """Body of the sender: its CPU time for each question, until the parent closes the pipe."""
    asyncio.run(_serve(parent, num_messages))


async def _serve(parent: Connection, num_messages: int) -> None:
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
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    parent.send(port)
    await asyncio.to_thread(_tell_cpu_time, parent)
    await server.stop(0)


def _tell_cpu_time(parent: Connection) -> None:
    with suppress(EOFError):
        while True:
            parent.recv()
            parent.send(time.process_time())


def _receive(parent: Connection, port: int) -> None:
    """Body of the receiver: (seconds, CPU seconds, bytes) for each question."""
    keep_freed_memory()
    with open_bulk_channel(f"127.0.0.1:{port}") as channel, suppress(EOFError):
        call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(_METHOD)
        while True:
            parent.recv()
            began, cpu = time.perf_counter(), time.process_time()
            num_bytes = sum(len(message) for message in call(b"", timeout=_DEADLINE_S))
            parent.send((time.perf_counter() - began, time.process_time() - cpu, num_bytes))
