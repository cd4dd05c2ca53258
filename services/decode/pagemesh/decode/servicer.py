"""Decode.Session: one router's stream, its submissions and cancellations in, one message per engine step out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import grpc
import structlog

from pagemesh.decode.messages import OutputBuffer, parse_submit
from pagemesh.decode.remote_prefill import RemotePrefiller
from pagemesh.decode.request import DecodeRequest, error_output
from pagemesh.errors import InternalError, InvalidRequestError, PagemeshError, UnavailableError
from pagemesh.telemetry.spans import read_trace, trace_id_of
from pagemesh.v1 import decode_pb2, decode_pb2_grpc
from pagemesh.worker.worker import Worker

MAX_HANDOVER_S: Final = 5.0
"""End of the grace period, or half of a short one, in which requests go on elsewhere that have not finished."""


class DecodeServicer(decode_pb2_grpc.DecodeServicer):
    """Serves sessions; knows them all, so that they can drain when the worker stops."""

    def __init__(self, worker: Worker, prefiller: RemotePrefiller, grace_period: float) -> None:
        """`grace_period` is the seconds that `drain` has."""
        self._worker = worker
        self._prefiller = prefiller
        self._patience = grace_period - min(MAX_HANDOVER_S, grace_period / 2)
        self._sessions: set[Session] = set()
        self._draining = False
        self._over = asyncio.Event()
        self._over.set()

    async def Session(  # noqa: N802  # the name of the RPC
        self,
        request_iterator: AsyncIterator[decode_pb2.SessionRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncGenerator[decode_pb2.SessionResponse]:
        """Run what the router submits; when the stream ends, so does everything that it asked for.

        Has no deadline: it lasts as long as the router and the worker do, and keepalive tells both
        when the other one is gone.
        """
        session = Session(self._worker, self._prefiller, draining=self._draining)
        self._sessions.add(session)
        self._over.clear()
        reader = asyncio.create_task(session.read(request_iterator), name="session-reader")
        try:
            async for response in session.responses():
                yield response
        finally:
            session.close()
            self._sessions.discard(session)
            if not self._sessions:
                self._over.set()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def drain(self) -> None:
        """Wait until all sessions are over: their requests have finished, or have gone on elsewhere.

        Towards the end of the grace period those that are left are handed over. Whoever takes them fetches
        their KV from here, until all have it. The caller gives up when the grace period is over.
        """
        self._draining = True
        for session in self._sessions:
            session.drain()
        try:
            async with asyncio.timeout(self._patience):
                await self._over.wait()
        except TimeoutError:
            for session in self._sessions:
                session.hand_over()
            await self._over.wait()


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Session:
    """The requests of one stream; they live no longer than it. Belongs to one event loop."""

    def __init__(self, worker: Worker, prefiller: RemotePrefiller, *, draining: bool) -> None:
        self._worker = worker
        self._prefiller = prefiller
        self._buffer = OutputBuffer()
        self._requests: dict[int, DecodeRequest] = {}
        self._moved: set[int] = set()
        self._input_ended = False
        self._draining = draining

    async def read(self, requests: AsyncIterator[decode_pb2.SessionRequest]) -> None:
        """Do what the router asks until it asks no more."""
        try:
            async for request in requests:
                if request.HasField("submit"):
                    self._submit(request.submit)
                elif request.HasField("cancel"):
                    self._cancel(request.cancel.handle)
        except Exception:
            log.exception("session reader failed")  # task boundary; the session ends below
        finally:
            self._input_ended = True
            self._buffer.wake()

    async def responses(self) -> AsyncGenerator[decode_pb2.SessionResponse]:
        """What the router is told, until it asks no more or, when draining, nothing is left to tell."""
        info = self._worker.info
        opened = decode_pb2.SessionOpened(
            model_fingerprint=info.model_fingerprint, arithmetic=info.arithmetic
        )
        yield decode_pb2.SessionResponse(opened=opened)
        told_to_drain = False
        while not self._input_ended:
            if self._draining and not told_to_drain:
                told_to_drain = True
                yield decode_pb2.SessionResponse(draining=True)
            outputs = await self._buffer.take()
            if outputs:
                yield decode_pb2.SessionResponse(outputs=outputs)
            is_over = not self._requests and not self._moved and self._buffer.is_empty
            if self._draining and is_over:
                return

    def drain(self) -> None:
        """Refuse new requests, and end when the present ones have."""
        self._draining = True
        self._buffer.wake()

    def hand_over(self) -> None:
        """Have the present requests go on elsewhere, and end when the router needs nothing of them any more."""
        for handle, request in list(self._requests.items()):
            request.move()
            self._moved.add(handle)

    def close(self) -> None:
        """End all requests: the stream is gone. Idempotent."""
        for request in list(self._requests.values()):
            request.abandon()

    def _submit(self, submit: decode_pb2.Submit) -> None:
        try:
            self._start(submit)
        except PagemeshError as error:
            self._buffer.add(error_output(submit.handle, error))
        except Exception:
            # A bug may cost this request, but not the others of the session.
            log.exception(
                "submission failed",
                request_id=submit.request_id,
                trace_id=trace_id_of(read_trace(submit.traceparent)),
            )
            self._buffer.add(error_output(submit.handle, InternalError("internal error")))

    def _start(self, submit: decode_pb2.Submit) -> None:
        if submit.handle in self._requests:
            # Outputs of two requests under one handle would be a mixture: both end.
            self._requests[submit.handle].abandon()
            raise InvalidRequestError(f"handle {submit.handle} is in use", param="handle")
        if self._draining:
            raise UnavailableError("the worker is stopping", reason="DRAINING")
        engine_request_id = self._worker.dispatcher.unique_id(submit.request_id)
        leader = self._requests.get(submit.fork_of_handle) if submit.fork_of_handle else None
        fork_of = leader.engine_request_id if leader is not None else None
        submission = parse_submit(submit, engine_request_id, fork_of)
        request = DecodeRequest(
            self._worker, self._prefiller, self._buffer, submission, self._forget
        )
        request.start()
        self._requests[submit.handle] = request

    def _cancel(self, handle: int) -> None:
        self._moved.discard(handle)
        if handle in self._requests:
            self._requests[handle].cancel()
        # That may have been the last thing to wait for.
        self._buffer.wake()

    def _forget(self, handle: int) -> None:
        self._requests.pop(handle, None)
