"""Spans of what is sent to decode workers: each is ended by the worker's last word, or by its death."""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import Span, SpanKind, Tracer

from pagemesh.router.placer import SubmitSession
from pagemesh.router.plan_message import tell_trace
from pagemesh.router.read_ahead import UNFINISHED
from pagemesh.router.session import Sink
from pagemesh.rpc.status import make_error
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.spans import fail, within
from pagemesh.v1 import decode_pb2, types_pb2

MOVED: Final = "DRAINING"
"""Why a worker that stops in order leaves a request to another one."""


class TracedSession:
    """A `SubmitSession` for what one client's request sends to one worker. Belongs to one event loop."""

    def __init__(self, inner: SubmitSession, worker_id: str, request: Span, tracer: Tracer) -> None:
        """`request` is the client's, which is told of workers that do not finish."""
        self._inner = inner
        self._worker_id = worker_id
        self._request = request
        self._tracer = tracer
        self._spans: dict[int, Span] = {}

    @property
    def is_live(self) -> bool:
        return self._inner.is_live

    def submit(self, submit: decode_pb2.Submit, sink: Sink) -> int:
        """See `SubmitSession`; the worker is told that the span of this is its parent."""
        told = {names.WORKER: self._worker_id, names.REQUEST_ID: submit.request_id}
        span = self._tracer.start_span(names.SUBMIT, within(self._request), SpanKind.CLIENT, told)
        if submit.resume_token_ids:
            span.set_attribute(names.RESUMED_TOKENS, len(submit.resume_token_ids))
        tell_trace(span, submit)

        def take(output: decode_pb2.RequestOutput) -> None:
            if output.finish_reason:
                self._end(output)
            sink(output)

        try:
            handle = self._inner.submit(submit, take)
        except BaseException:
            span.set_attribute(names.ERROR_TYPE, "UNAVAILABLE")
            span.end()
            raise
        self._spans[handle] = span
        return handle

    def cancel(self, handle: int) -> None:
        """See `SubmitSession`. What has its stop string, or no client any more, ends here."""
        span = self._spans.pop(handle, None)
        if span is not None:
            span.end()
        self._inner.cancel(handle)

    def _end(self, output: decode_pb2.RequestOutput) -> None:
        span = self._spans.pop(output.handle, None)
        if span is None:
            return
        if output.finish_reason in UNFINISHED:
            reason = self._fail(span, output)
            self._request.add_event(
                names.WORKER_LOST, {names.WORKER: self._worker_id, names.ERROR_TYPE: reason}
            )
        span.end()

    def _fail(self, span: Span, output: decode_pb2.RequestOutput) -> str:
        if output.finish_reason == types_pb2.FINISH_REASON_MOVED:
            span.set_attribute(names.ERROR_TYPE, MOVED)
            return MOVED
        error = output.error
        failure = make_error(error.code, error.reason, error.message, error.param or None)
        fail(span, failure)
        return failure.reason
