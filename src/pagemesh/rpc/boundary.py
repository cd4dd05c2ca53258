"""The boundary between gRPC and the servicers of a process, as one interceptor around every RPC.

It refuses calls while the process does not serve (but for those that tell so), and of those whose certificate
does not allow them; it maps exceptions to rich statuses (unknown ones are
logged with their traceback and reach the caller as a bare INTERNAL), and has the task of the RPC work
for what the incoming metadata says (`call_context`).

A servicer's response stream is closed here the moment its RPC ends. grpc itself leaves that to the
garbage collector, so that the `finally` of a cancelled stream would run at some later time; here the
`finally` of an async generator is a place where leases can be given back. It runs to its end: when a
write fails because the peer is gone, grpc cancels the call a little later, which must not cut it off.

`PatientWriter` writes the messages of one call; a caller that reads nothing for too long loses it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Self, cast

import grpc
import structlog
from google.protobuf.message import DecodeError

from pagemesh.errors import InvalidRequestError, PagemeshError
from pagemesh.rpc.call_context import answer_metadata, begin_answer, bind_call, read_metadata
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.process import PROCESS_SERVICE
from pagemesh.rpc.status import abort, as_pagemesh_error, for_log
from pagemesh.rpc.tasks import run_to_end

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# The boundary stands around RPCs of every type, so it knows none of their messages.
_Behavior = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Any]

_NOT_OURS: Final = ("/grpc.health.", "/grpc.reflection.")
_ALWAYS_SERVED: Final = f"/{PROCESS_SERVICE}/"
"""Says how far the process is, whatever that is."""

_CANCEL_TIMEOUT: Final = 1.0
"""Seconds in which grpc cancels a call whose peer is gone."""

MESSAGE_TIMEOUT: Final = 300.0
"""Seconds for the message of a call to come, which may be large, and its sender slow."""

WRITE_TIMEOUT: Final = 120.0
"""Seconds that a caller may let one message of a stream wait before what the call holds is given back. gRPC takes
some 64 KiB before it waits for a caller."""


Around = Callable[[str], AbstractContextManager[object]]
"""Gives what a call of the method is run in: in its task, which is bound to what the caller said of it."""


class RpcBoundary(grpc.aio.ServerInterceptor):
    """Stands around every RPC of a server; `refusal` says why a method is not to be called now, None if it is.

    With an identity, callers have certificates, which say what they may call.
    """

    def __init__(
        self,
        refusal: Callable[[str], PagemeshError | None],
        around: Around = nullcontext,
        identity: Identity | None = None,
        *,
        serves_clients: bool = False,
    ) -> None:
        """With `serves_clients`, what callers are told of their mistakes may quote prompts, and is not logged."""
        self._serves_clients = serves_clients
        self._refusal = refusal
        self._identity = identity
        self._around = around
        self._calls: set[asyncio.Task[Any]] = set()

    async def wait_until_idle(self, seconds: float) -> None:
        """Wait, but not longer than this, until the servicers' code of ended calls gave everything back."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=seconds)

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of one call, guarded; None, as grpc has it, for an unknown method."""
        # Here, as interceptors behind this one may have something to say; all of them run in the call's task.
        begin_answer()
        method = handler_call_details.method
        if method.startswith(_NOT_OURS):
            return await continuation(handler_call_details)
        refusal = None if method.startswith(_ALWAYS_SERVED) else self._refusal(method)
        if refusal is not None:
            return _refuse(refusal)
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return self._guard(handler, method)

    def _guard(
        self, handler: grpc.RpcMethodHandler[Any, Any], method: str
    ) -> grpc.RpcMethodHandler[Any, Any]:
        # Exactly one is set. grpc declares them for its threaded servers only, hence the cast.
        behavior = cast(
            _Behavior,
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream,
        )

        async def call(raw: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            self._note_call()
            bind_call(*read_metadata(context.invocation_metadata() or (), context.time_remaining()))
            try:
                if self._identity is not None:
                    self._identity.check(method, context.auth_context())
                with self._around(method):
                    try:
                        request = await _request(handler, raw)
                        return await _run(behavior, request, context)
                    finally:
                        log.debug("rpc over", method=method)
            except grpc.aio.InternalError:
                # A write failed because the peer is gone. grpc is about to cancel the call for that, which
                # is no fault; what is raised before it does, it logs as one.
                await asyncio.sleep(_CANCEL_TIMEOUT)
                raise
            except grpc.aio.BaseError:  # an abort of the servicer, or the server has stopped
                raise
            except Exception as error:
                mapped = as_pagemesh_error(error)
                self._log_failure(method, mapped, error)
                await abort(context, mapped)

        # A single request is read here, as one of a stream of them: grpc would end a call whose message it cannot
        # read as UNKNOWN, with a traceback, and one that is closed without a message not before its deadline.
        reads = handler.request_deserializer if handler.request_streaming else None
        factory: Callable[..., grpc.RpcMethodHandler[Any, Any]] = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return factory(call, reads, handler.response_serializer)

    def _log_failure(self, method: str, mapped: PagemeshError, cause: Exception) -> None:
        if not isinstance(cause, (PagemeshError, grpc.RpcError, TimeoutError)):
            log.error("rpc failed", method=method, exc_info=cause)
            return
        told = for_log(mapped) if self._serves_clients else {"error": mapped.message}
        log.info(
            "rpc refused",
            **{"method": method, "code": mapped.grpc_code, "reason": mapped.reason, **told},
        )

    def _note_call(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "grpc runs each call in a task of its own"
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)


def _refuse(error: PagemeshError) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort(context, error)

    # Both sides as streams: such a handler answers without waiting for a request message first.
    return grpc.stream_stream_rpc_method_handler(refuse)


async def _request(handler: grpc.RpcMethodHandler[Any, Any], raw: AsyncIterator[Any]) -> Any:
    """What the servicer gets: a message, or grpc's own iterator of them.

    InvalidRequestError when a single one cannot be read, or is not sent; TimeoutError when it does not come.
    """
    if handler.request_streaming:
        return raw
    read = handler.request_deserializer
    assert read is not None, "the contract has messages alone"
    async with asyncio.timeout(MESSAGE_TIMEOUT):
        async for first in raw:
            try:
                return read(first)
            except DecodeError as error:
                # The library's words name no field.
                raise InvalidRequestError(
                    f"a message of {len(first)} bytes cannot be read as what the method takes: it is cut off, or"
                    " text in it is no UTF-8",
                    reason="MALFORMED_MESSAGE",
                ) from error
    raise InvalidRequestError("the call ended without a message", reason="MALFORMED_MESSAGE")


async def _run(
    behavior: _Behavior, request: Any, context: grpc.aio.ServicerContext[Any, Any]
) -> Any:
    responses = behavior(request, context)
    if not inspect.isasyncgen(responses):
        answer = await responses
        await _send_head(context)
        return answer
    try:
        has_begun = False
        # Whoever reads nothing must not keep what the call holds; its end of the connection may answer pings.
        async with PatientWriter(context, WRITE_TIMEOUT) as writer:
            async for response in responses:
                if not has_begun:
                    has_begun = True
                    await _send_head(context)
                await writer.write(response)
    finally:
        await run_to_end(responses.aclose())
    return None


async def _send_head(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    if metadata := answer_metadata():
        await context.send_initial_metadata(metadata)


class PatientWriter:
    """A block in which messages are written; raises TimeoutError when one of them waits longer than `seconds`.

    One timer for all of them, which looks again: a timer for each message would cost as much as its frame.
    """

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], seconds: float) -> None:
        self._context = context
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._writing_since: float | None = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._timer = self._loop.call_later(self._seconds, self._check)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(exc_type, exc, traceback)

    async def write(self, message: Any) -> None:
        """Write one, when there is room for it."""
        self._writing_since = self._loop.time()
        await self._context.write(message)
        self._writing_since = None

    def _check(self) -> None:
        now = self._loop.time()
        since = now if self._writing_since is None else self._writing_since
        if now >= since + self._seconds:
            self._limit.reschedule(now)
        else:
            self._timer = self._loop.call_at(since + self._seconds, self._check)
