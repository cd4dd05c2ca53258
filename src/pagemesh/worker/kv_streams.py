"""KV streams from other workers into a grant: read as they come, verified on threads, counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc

from pagemesh.errors import KvIntegrityError, UnavailableError
from pagemesh.kvship.receive import Accepted, KvReceiver
from pagemesh.telemetry import metrics as declared
from pagemesh.v1 import types_pb2
from pagemesh.worker.kv_import import KvImport
from pagemesh.worker.link_meter import StreamTimer
from pagemesh.worker.worker import Worker

KvCall = grpc.aio.UnaryStreamCall[Any, bytes]

STALL_TIMEOUT: Final = 10.0
"""Seconds without a message after which a sender is given up: longer than any chunk takes, and short
enough that a client still waits for its first token. A sender that only queues says so more often."""

SMALL_MESSAGE_BYTES: Final = 16 * 1024
"""Up to which a message is checked and copied on the loop: the way to a thread and back would only delay
the first token."""


class KvStreams:
    """Receives the streams of one worker. Belongs to one event loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._rejected = worker.metrics.counter(declared.KV_REJECTED)
        self._bytes_received = worker.metrics.counter(declared.KV_BYTES_RECEIVED)

    async def receive_prefill(
        self, call: KvCall, kv: KvImport, sender: types_pb2.PeerWorker
    ) -> None:
        """Receive all that is missing and the first token, unless that is known; ends the call.

        UnavailableError when the sender stalls or ends early, KvIntegrityError for what is wrong.
        """
        with self._begin(call, kv, sender) as (receiver, timer):
            while not (kv.is_complete and kv.has_first_token):
                await self._receive_message(call, receiver, kv, sender, timer)

    async def receive_fetch(self, call: KvCall, kv: KvImport, sender: types_pb2.PeerWorker) -> None:
        """Receive the blocks that the sender's header announces; ends the call. Raises likewise."""
        with self._begin(call, kv, sender) as (receiver, timer):
            while not receiver.has_all_announced:
                await self._receive_message(call, receiver, kv, sender, timer)

    @contextmanager
    def _begin(
        self, call: KvCall, kv: KvImport, sender: types_pb2.PeerWorker
    ) -> Iterator[tuple[KvReceiver, StreamTimer]]:
        timer = self._worker.links.begin(sender.worker_id)
        try:
            with self._worker.host_memory.stream(sender) as choose_way:
                yield kv.begin_stream(sender, choose_way), timer
        finally:
            timer.end()
            # The sender may keep its blocks until then.
            call.cancel()

    async def _receive_message(
        self,
        call: KvCall,
        receiver: KvReceiver,
        kv: KvImport,
        sender: types_pb2.PeerWorker,
        timer: StreamTimer,
    ) -> None:
        message = await _next_message(call, sender)
        try:
            accepted = await self._accept(receiver, message)
        except KvIntegrityError as error:
            self._rejected.labels(error.reason).inc()
            raise
        timer.on_message(accepted.num_bytes, accepted.ready_seconds)
        self._bytes_received.inc(accepted.num_bytes)
        kv.on_message(accepted.first_token)

    async def _accept(self, receiver: KvReceiver, message: bytes) -> Accepted:
        if len(message) > SMALL_MESSAGE_BYTES:
            return await self._worker.block_workers.run(receiver.accept, message)
        frame = receiver.open(message)
        if frame.content.blocks.HasField("memory_blocks"):
            return await self._worker.block_workers.run(receiver.take, frame)
        return receiver.take(frame)


async def _next_message(call: KvCall, sender: types_pb2.PeerWorker) -> bytes:
    stalled = asyncio.timeout(STALL_TIMEOUT)
    try:
        async with stalled:
            message = await call.read()
    except TimeoutError as error:
        if not stalled.expired():
            raise
        raise UnavailableError(
            f"{sender.worker_id} sent nothing for {STALL_TIMEOUT:g} s", reason="KV_STALLED"
        ) from error
    if not isinstance(message, bytes):
        raise UnavailableError("the stream ended before all KV", reason="KV_INCOMPLETE")
    return message
