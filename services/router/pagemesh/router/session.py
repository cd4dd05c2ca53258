"""The router's side of one `Decode.Session`: all its requests on one worker, on one stream.

Owns the channel to the worker and reconnects for as long as the worker is a member. Knows handles
and messages; routing, text and retries are others' business.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import grpc
import structlog

from pagemesh.errors import UnavailableError, WorkerLostError
from pagemesh.identity.roles import MeshRole
from pagemesh.membership.replicas import Backoff
from pagemesh.router.read_ahead import SessionCall, read_ahead
from pagemesh.router.session_requests import SessionRequests
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.tasks import cancel_to_end
from pagemesh.v1 import decode_pb2, decode_pb2_grpc, types_pb2

_log = structlog.get_logger(__name__)

_CONNECT_TIMEOUT_S = 5.0

_SILENCE: Final = re.compile("timeout|timed out|no route|unreachable", re.IGNORECASE)
"""In what gRPC says of a connection that broke: a process that dies has its connections closed by its kernel."""

Sink = Callable[[decode_pb2.RequestOutput], None]
"""Takes the outputs of one request, on the event loop. The last one has a finish reason."""


class _AnotherWorkerError(Exception):
    """Whoever answers at the worker's address computes other tokens than the worker."""


class WorkerSession:
    """Requests of this router on one decode worker. Belongs to one event loop.

    start → submit and cancel → retire or close. When the stream breaks, every request on it ends with
    an error output of reason WORKER_LOST, or WORKER_SILENT where either end may have been cut off from the other;
    the stream is opened again with backoff until `close`.
    A request that the worker has moved keeps its handle until it is cancelled: so long does the worker stay.
    """

    def __init__(self, info: types_pb2.WorkerInfo, identity: Identity | None = None) -> None:
        self.info = info
        self._identity = identity
        self._sinks: dict[int, Sink] = {}
        self._moved: set[int] = set()
        self._next_handle = 1
        self._requests: SessionRequests | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._retired = False
        self._draining = False
        self._task: asyncio.Task[None] | None = None
        self.last_end = ""
        """Why the last stream ended; empty before the first did."""

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._task = asyncio.create_task(
            self._stay_connected(), name=f"session-{self.info.worker_id}"
        )

    @property
    def is_live(self) -> bool:
        """Whether requests can be submitted and would be taken."""
        return self._requests is not None and not self._retired and not self._draining

    @property
    def is_draining(self) -> bool:
        """Whether the worker said that it takes no more requests on the open stream."""
        return self._requests is not None and self._draining

    def submit(self, submit: decode_pb2.Submit, sink: Sink) -> int:
        """Start a request and give it a handle; UnavailableError when the stream is not open."""
        if self._requests is None or self._retired:
            raise UnavailableError(f"worker {self.info.worker_id} is not connected")
        submit.handle = self._next_handle
        self._next_handle += 1
        self._sinks[submit.handle] = sink
        self._idle.clear()
        self._requests.submit(submit)
        return submit.handle

    def cancel(self, handle: int) -> None:
        """End a request early; its sink is not called again. Ended handles are ignored."""
        is_known = handle in self._sinks or handle in self._moved
        self._moved.discard(handle)
        self._forget(handle)
        if is_known and self._requests is not None:
            self._requests.cancel(handle)

    async def retire(self) -> None:
        """Take no more requests, wait until the present ones have ended, and close.

        Ends: every request has a deadline, at which it is cancelled.
        """
        self._retired = True
        await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        """End the stream, and with it every request. Idempotent."""
        if self._task is not None:
            # Ends at once: the task only waits for the connection, the stream or its next attempt.
            await cancel_to_end(self._task)
            self._task = None

    async def _stay_connected(self) -> None:
        backoff = Backoff()
        while True:
            reason = "the worker ended the session"
            try:
                # A new channel for each stream: it shows the certificate of now, which one that stays does not.
                async with open_channel(
                    self.info.address, MeshRole.DECODE, self._identity
                ) as channel:
                    await self._follow_stream(channel, backoff)
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                reason = _reason(error)
            except _AnotherWorkerError:
                # What began here must not go on there; if it is to be used, the kvstore will say so.
                reason = "at the worker's address, another model or another arithmetic runs"
            except Exception:
                # Task boundary: whatever went wrong, the next stream starts from nothing.
                _log.exception("session failed", worker_id=self.info.worker_id)
                reason = "the router could not read the worker's answer"
            finally:
                self._requests = None
                self._lose_all(is_silent=_SILENCE.search(reason) is not None)
            self.last_end = reason
            _log.info("session ended", worker_id=self.info.worker_id, reason=reason)
            await asyncio.sleep(backoff.next_delay())

    async def _follow_stream(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        """Open one stream and read it to its end."""
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            await channel.channel_ready()
        requests = SessionRequests()
        # No deadline: the stream lives as long as both processes. A peer that froze is noticed by
        # the channel's keepalive.
        stub: decode_pb2_grpc.DecodeAsyncStub = decode_pb2_grpc.DecodeStub(channel)
        call = stub.Session()
        writer = asyncio.create_task(_write(call, requests), name="session-writer")
        try:
            async with aclosing(read_ahead(call)) as responses:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    first = await anext(responses, None)
                if first is None:
                    return
                if not _is_meant(self.info, first.opened):
                    raise _AnotherWorkerError
                self._requests, self._draining = requests, False
                _log.info(
                    "session opened", worker_id=self.info.worker_id, address=self.info.address
                )
                self._deliver(first)
                async for response in responses:
                    backoff.reset()
                    self._deliver(response)
        finally:
            writer.cancel()
            call.cancel()
            # Ends at once; what made it fail has ended the call, which says so itself.
            await asyncio.gather(writer, return_exceptions=True)

    def _deliver(self, response: decode_pb2.SessionResponse) -> None:
        if response.draining and not self._draining:
            # It says so to the kvstore as well, which may be away.
            self._draining = True
            _log.info("worker draining", worker_id=self.info.worker_id)
        for output in response.outputs:
            if output.finish_reason:
                if output.finish_reason == types_pb2.FINISH_REASON_MOVED:
                    self._moved.add(output.handle)
                sink = self._forget(output.handle)
            else:
                sink = self._sinks.get(output.handle)
            if sink is not None:
                sink(output)

    def _lose_all(self, *, is_silent: bool) -> None:
        error = WorkerLostError(f"worker {self.info.worker_id} went away while it ran the request")
        if is_silent:
            error = WorkerLostError(
                f"nothing was heard any more of worker {self.info.worker_id}, which ran the request",
                reason="WORKER_SILENT",
            )
        self._moved.clear()
        self._note_if_idle()
        for handle in list(self._sinks):
            sink = self._forget(handle)
            if sink is not None:
                sink(_failed(handle, error))

    def _forget(self, handle: int) -> Sink | None:
        sink = self._sinks.pop(handle, None)
        self._note_if_idle()
        return sink

    def _note_if_idle(self) -> None:
        if not self._sinks and not self._moved:
            self._idle.set()


def _is_meant(info: types_pb2.WorkerInfo, opened: decode_pb2.SessionOpened) -> bool:
    """Whether that is the worker: another one may be at its address before the kvstore says so."""
    return (info.model_fingerprint, info.arithmetic) == (
        opened.model_fingerprint,
        opened.arithmetic,
    )


def _failed(handle: int, error: WorkerLostError) -> decode_pb2.RequestOutput:
    return decode_pb2.RequestOutput(
        handle=handle,
        finish_reason=types_pb2.FINISH_REASON_ERROR,
        error=types_pb2.Error(code=error.grpc_code, reason=error.reason, message=error.message),
    )


async def _write(call: SessionCall, requests: SessionRequests) -> None:
    """Send what is queued until the stream ends or the task is cancelled."""
    while True:
        await call.write(await requests.get())


def _reason(error: grpc.aio.AioRpcError | TimeoutError) -> str:
    if isinstance(error, TimeoutError):
        return "the worker could not be reached"
    return f"{error.code().name}: {error.details()}"
