"""KV streams from other workers into a grant: each is read, verified and copied by a thread of its own.

The event loop hears only of what was verified, and not of each message. Reading by asyncio takes more CPU
time for the same bytes and keeps the loop longer from everybody else's tokens.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from pagemesh.errors import KvIntegrityError, UnavailableError
from pagemesh.kv_transfer.endpoint import NUM_THREADS, KvEndpoint
from pagemesh.kv_transfer.kv_import import KvImport
from pagemesh.kv_transfer.receiver import Accepted
from pagemesh.kv_transfer.stream_reader import StreamReader
from pagemesh.rpc.channels import BulkCall, end_bulk_call
from pagemesh.rpc.tasks import until_done
from pagemesh.telemetry.metrics import transfer as declared
from pagemesh.v1 import types_pb2

T = TypeVar("T")

STALL_TIMEOUT: Final = 10.0
"""Seconds without a message after which a sender is given up: longer than any chunk takes, and short
enough that a client still waits for its first token. A sender that only queues says so more often."""

MAX_STREAMS: Final = 256
"""Streams that are read at once; more wait."""


class KvStreams:
    """Receives the streams of one worker. Belongs to one event loop."""

    def __init__(self, endpoint: KvEndpoint) -> None:
        self._endpoint = endpoint
        self._rejected = endpoint.metrics.counter(declared.KV_REJECTED)
        self._bytes_received = endpoint.metrics.counter(declared.KV_BYTES_RECEIVED)
        self._threads = ThreadPoolExecutor(MAX_STREAMS, thread_name_prefix="kv-stream")
        self._copying = threading.Semaphore(NUM_THREADS)

    async def receive_prefill(
        self, call: BulkCall, kv: KvImport, sender: types_pb2.PeerWorker
    ) -> None:
        """Receive all that is missing and the first token, unless that is known; ends the call.

        UnavailableError when the sender stalls or ends early, KvIntegrityError for what is wrong.
        """
        awaits_token = kv.awaits_first_token
        await self._receive(
            call,
            kv,
            sender,
            lambda reader: kv.is_complete and (reader.has_token or not awaits_token),
        )

    async def receive_fetch(
        self, call: BulkCall, kv: KvImport, sender: types_pb2.PeerWorker
    ) -> None:
        """Receive the blocks that the sender's header announces; ends the call. Raises likewise."""
        await self._receive(call, kv, sender, lambda reader: reader.receiver.has_all_announced)

    def close(self) -> None:
        """End the threads; no stream may be left. Not on the event loop."""
        self._threads.shutdown()

    async def _receive(
        self,
        call: BulkCall,
        kv: KvImport,
        sender: types_pb2.PeerWorker,
        is_over: Callable[[StreamReader], bool],
    ) -> None:
        loop = asyncio.get_running_loop()
        timer = self._endpoint.links.begin(sender.worker_id)
        try:
            with self._endpoint.transports.stream(sender) as choose_transport:
                receiver = kv.begin_stream(sender, partial(_run_on, loop, choose_transport))
                reader = StreamReader(
                    call,
                    receiver,
                    timer,
                    self._copying,
                    tell=partial(self._note, loop, kv),
                    is_over=is_over,
                )
                await self._run(reader, sender)
        except KvIntegrityError as error:
            self._rejected.labels(error.reason).inc()
            raise
        finally:
            timer.end()
            # Perhaps no thread ever read it.
            end_bulk_call(call)

    async def _run(self, reader: StreamReader, sender: types_pb2.PeerWorker) -> None:
        """Have a thread read; returns or raises only when it is over, so that nothing copies any more."""
        work = self._threads.submit(reader.run)
        future = asyncio.wrap_future(work)
        try:
            while not future.done():
                seconds_left = STALL_TIMEOUT - reader.seconds_silent
                if seconds_left <= 0:
                    raise UnavailableError(
                        f"{sender.worker_id} sent nothing for {STALL_TIMEOUT:g} s",
                        reason="KV_STALLED",
                    )
                await asyncio.wait({future}, timeout=seconds_left)
        finally:
            if not work.cancel():
                reader.stop()
                await until_done(future)
        future.result()

    def _note(self, loop: asyncio.AbstractEventLoop, kv: KvImport, accepted: Accepted) -> None:
        """On the reading thread: the loop is woken only for what it has to do something about."""
        self._bytes_received.inc(accepted.num_bytes)
        if accepted.first_token is not None or kv.is_complete:
            loop.call_soon_threadsafe(kv.on_message, accepted.first_token)


def _run_on(loop: asyncio.AbstractEventLoop, function: Callable[[Any], T], argument: Any) -> T:
    """Call a function that belongs to the loop, from a thread; waits for it.

    Needs no deadline: whoever had the thread read is on that loop and waits for the thread's end.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(function(argument))
        except BaseException as error:
            outcome.set_exception(error)

    loop.call_soon_threadsafe(run)
    return outcome.result()
