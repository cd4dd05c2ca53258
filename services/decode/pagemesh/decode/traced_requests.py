"""A span for each request of a decode worker, from its submission to its last output."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pagemesh.decode.active_request import ActiveRequest
from pagemesh.decode.outbox import OutputSink
from pagemesh.decode.remote_prefill import Prefiller
from pagemesh.decode.submission import Submission
from pagemesh.rpc.status import make_error
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.otlp import OtlpTracer
from pagemesh.telemetry.spans import AttributeValue, BegunSpan
from pagemesh.v1 import decode_pb2, types_pb2
from pagemesh.worker.kv_import import KvImport
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


class TracedRequests:
    """Makes requests; those of recorded traces tell spans what becomes of them."""

    def __init__(self, worker: Worker, prefiller: Prefiller, tracer: OtlpTracer) -> None:
        self._worker = worker
        self._prefiller = prefiller
        self._tracer = tracer

    def make(
        self, outbox: OutputSink, submission: Submission, on_end: Callable[[int], None]
    ) -> ActiveRequest:
        """See `MakeRequest`. What is called for the request is told that the span is its parent."""
        if not submission.trace.is_sampled:
            return ActiveRequest(self._worker, self._prefiller, outbox, submission, on_end)
        request, worker_id = submission.request, self._worker.info.worker_id
        told: dict[str, AttributeValue] = {
            names.WORKER: worker_id,
            names.REQUEST_ID: submission.client_request_id,
            names.REQUEST_MODEL: self._worker.info.model_name,
            names.INPUT_TOKENS: len(request.prompt_token_ids),
        }
        if request.resume_token_ids:
            told[names.RESUMED_TOKENS] = len(request.resume_token_ids)
        span = self._tracer.begin(names.DECODE, submission.trace, told)
        life = _RequestSpan(span, outbox, self._prefiller)

        def end(handle: int) -> None:
            life.end()
            on_end(handle)

        return ActiveRequest(self._worker, life, life, replace(submission, trace=span.trace), end)


class _RequestSpan:
    """Implements `OutputSink` and `Prefiller`, and tells a span what passes."""

    def __init__(self, span: BegunSpan, outbox: OutputSink, prefiller: Prefiller) -> None:
        self._span = span
        self._outbox = outbox
        self._prefiller = prefiller
        self._began_at = time.monotonic()
        self._num_tokens = 0
        self._has_ended = False

    def start(self, kv: KvImport, plan: decode_pb2.PrefillPlan) -> asyncio.Task[None]:
        """See `Prefiller`: the engine has blocks for it."""
        self._span.set({names.TIME_IN_QUEUE: self._seconds})
        return self._prefiller.start(kv, plan)

    def add(self, output: decode_pb2.RequestOutput) -> None:
        if output.token_ids and not self._num_tokens:
            self._span.event(names.FIRST_TOKEN, {})
            self._span.set({names.TIME_TO_FIRST_TOKEN: self._seconds})
        self._num_tokens += len(output.token_ids)
        if output.HasField("prompt_usage"):
            self._span.set({names.CACHED_TOKENS: output.prompt_usage.cached_token_count})
        if output.HasField("kv_outcome"):
            self._tell_outcome(output.kv_outcome)
        if output.finish_reason:
            self._tell_end(output)
        self._outbox.add(output)

    def end(self) -> None:
        """Nothing more comes. Without a last output, the router has gone or does not want it any more."""
        if not self._has_ended:
            self._span.set({names.ERROR_TYPE: names.CANCELLED})
        self._span.set({names.E2E: self._seconds, names.OUTPUT_TOKENS: self._num_tokens})
        self._span.end()

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began_at

    def _tell_outcome(self, outcome: types_pb2.KvOutcome) -> None:
        took = outcome.time_to_ready
        self._span.set(
            {
                names.KV_PATH: _PATHS.get(outcome.path, ""),
                names.KV_SECONDS: took.seconds + took.nanos / 1e9,
                names.KV_RECEIVED: outcome.received_token_count,
            }
        )

    def _tell_end(self, output: decode_pb2.RequestOutput) -> None:
        self._has_ended = True
        self._span.set({names.FINISH_REASONS: [_FINISH_REASONS.get(output.finish_reason, "")]})
        if output.HasField("error"):
            error = output.error
            self._span.fail(make_error(error.code, error.reason, error.message))
