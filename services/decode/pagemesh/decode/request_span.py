"""The span of one request of a session, which is told what passes; there is none where its router records nothing."""

from __future__ import annotations

import time
from typing import Final

from opentelemetry.trace import Span, SpanKind

from pagemesh.decode.messages import Submission
from pagemesh.rpc.status import make_error
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.spans import fail, is_sampled, within
from pagemesh.v1 import decode_pb2, types_pb2
from pagemesh.worker.worker import Worker

_FINISH_REASONS: Final = {
    types_pb2.FINISH_REASON_STOP: "stop",
    types_pb2.FINISH_REASON_LENGTH: "length",
    types_pb2.FINISH_REASON_CANCELLED: "cancelled",
    types_pb2.FINISH_REASON_ERROR: "error",
    types_pb2.FINISH_REASON_MOVED: "moved",
}
_PATHS: Final = {
    types_pb2.KV_PATH_LOCAL: "local",
    types_pb2.KV_PATH_REMOTE: "remote",
    types_pb2.KV_PATH_PULL: "pull",
    types_pb2.KV_PATH_REMOTE_PULL: "remote_pull",
}


def begin_span(worker: Worker, submission: Submission) -> RequestSpan | None:
    """A span below the router's; None unless that is recorded, and spans are made here."""
    if not is_sampled(submission.caller):
        return None
    request = submission.request
    span = worker.tracer.start_span(
        names.DECODE,
        within(submission.caller),
        SpanKind.SERVER,
        {
            names.WORKER: worker.info.worker_id,
            names.REQUEST_ID: submission.client_request_id,
            names.REQUEST_MODEL: worker.info.model_name,
            names.INPUT_TOKENS: len(request.prompt_token_ids),
        },
    )
    if not span.is_recording():
        return None
    if request.resume_token_ids:
        span.set_attribute(names.RESUMED_TOKENS, len(request.resume_token_ids))
    return RequestSpan(span)


class RequestSpan:
    """From the submission to the last output."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self._began_at = time.monotonic()
        self._num_tokens = 0
        self._has_last_output = False

    def on_granted(self) -> None:
        """The engine has blocks for KV that comes from elsewhere."""
        self.span.set_attribute(names.TIME_IN_QUEUE, self._seconds)

    def on_output(self, output: decode_pb2.RequestOutput) -> None:
        """The router is told this."""
        if output.token_ids and not self._num_tokens:
            self.span.add_event(names.FIRST_TOKEN)
            self.span.set_attribute(names.TIME_TO_FIRST_TOKEN, self._seconds)
        self._num_tokens += len(output.token_ids)
        if output.HasField("prompt_usage"):
            self.span.set_attribute(names.CACHED_TOKENS, output.prompt_usage.cached_token_count)
        if output.HasField("kv_outcome"):
            self._tell_outcome(output.kv_outcome)
        if output.finish_reason:
            self._tell_end(output)

    def end(self) -> None:
        """Nothing more comes. Without a last output, the router has gone or does not want it any more."""
        if not self._has_last_output:
            self.span.set_attribute(names.ERROR_TYPE, names.CANCELLED)
        self.span.set_attributes({names.E2E: self._seconds, names.OUTPUT_TOKENS: self._num_tokens})
        self.span.end()

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began_at

    def _tell_outcome(self, outcome: types_pb2.KvOutcome) -> None:
        took = outcome.time_to_ready
        self.span.set_attributes(
            {
                names.KV_PATH: _PATHS.get(outcome.path, ""),
                names.KV_SECONDS: took.seconds + took.nanos / 1e9,
                names.KV_RECEIVED: outcome.received_token_count,
            }
        )

    def _tell_end(self, output: decode_pb2.RequestOutput) -> None:
        self._has_last_output = True
        reason = _FINISH_REASONS.get(output.finish_reason, "")
        self.span.set_attribute(names.FINISH_REASONS, [reason])
        if output.HasField("error"):
            error = output.error
            fail(self.span, make_error(error.code, error.reason, error.message))
