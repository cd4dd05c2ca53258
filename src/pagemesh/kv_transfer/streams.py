"""KV streams from other workers into a grant: each is read, verified and copied by a thread of its own.

The event loop hears only of what was verified, and not of each message. Reading by asyncio takes more CPU
time for the same bytes and keeps the loop longer from everybody else's tokens.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from pagemesh.errors import KvIntegrityError, UnavailableError
from pagemesh.kv_transfer.endpoint import NUM_THREADS, KvEndpoint
from pagemesh.kv_transfer.kv_import import KvImport
from pagemesh.kv_transfer.links import StreamTimer
from pagemesh.kv_transfer.receiver import Accepted, KvReceiver
from pagemesh.rpc.channels import BulkCall, RawStream, end_bulk_call
from pagemesh.rpc.tasks import until_done
from pagemesh.telemetry import span_names
from pagemesh.telemetry.metrics import transfer as declared
from pagemesh.v1 import kv_transfer_pb2, prefill_pb2, types_pb2

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


class StreamReader:
    """Verifies message by message, until all that was wanted is there."""

    def __init__(
        self,
        call: BulkCall,
        receiver: KvReceiver,
        timer: StreamTimer,
        copying: threading.Semaphore,
        tell: Callable[[Accepted], object],
        is_over: Callable[[StreamReader], bool],
    ) -> None:
        """`tell` is called on the thread, with what each message brought. Of all streams, only so many
        copy at once as `copying` lets: more make nothing faster, and keep others from the GIL.
        """
        self.receiver = receiver
        self.has_token = False
        """Whether the first token came."""
        self._call = call
        self._timer = timer
        self._copying = copying
        self._tell = tell
        self._is_over = is_over
        self._heard_at: float | None = None

    @property
    def seconds_silent(self) -> float:
        """Since the last message, or since somebody listens; 0 as long as nobody does."""
        return 0.0 if self._heard_at is None else time.monotonic() - self._heard_at

    def run(self) -> None:
        """Read the stream and end it.

        Raises UnavailableError when it ends early, what `KvReceiver` raises, and grpc.RpcError.
        """
        self._heard_at = time.monotonic()
        try:
            for message in self._call:
                # Who copies does not listen: that takes as long as it takes, and is not the sender's silence.
                self._heard_at = None
                accepted = self._accept(message)
                self._heard_at = time.monotonic()
                self._timer.on_message(accepted.num_bytes, accepted.ready_seconds)
                self.has_token |= accepted.first_token is not None
                self._tell(accepted)
                if self._is_over(self):
                    return
            raise UnavailableError("the stream ended before all KV", reason="KV_INCOMPLETE")
        finally:
            # The sender may keep its blocks until then.
            end_bulk_call(self._call)

    def stop(self) -> None:
        """Have `run` end soon, from any thread: behind the message that it copies."""
        self._call.cancel()

    def _accept(self, message: bytes) -> Accepted:
        frame = self.receiver.open(message)
        if not frame.content.HasField("blocks"):
            return self.receiver.take(frame)
        with self._copying:
            return self.receiver.take(frame)


PREFILL: Final = RawStream(
    prefill_pb2.DESCRIPTOR.services_by_name["Prefill"], "Prefill", prefill_pb2.PrefillRequest
)
FETCH: Final = RawStream(
    kv_transfer_pb2.DESCRIPTOR.services_by_name["KvTransfer"],
    "Fetch",
    kv_transfer_pb2.FetchRequest,
)

SPAN_NAMES: Final = {PREFILL.path: span_names.PREFILL, FETCH.path: span_names.FETCH}
"""What a call of each is called in a trace, by those who serve it."""
