"""One request of a session, from its submission to its last output, with what became of its KV."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from google.protobuf import duration_pb2

from pagemesh.core.kv import KvGrant
from pagemesh.core.request import FinishReason, RequestOutput
from pagemesh.decode.messages import OutputBuffer, Submission
from pagemesh.decode.remote_prefill import RemotePrefiller
from pagemesh.decode.request_span import begin_span
from pagemesh.errors import DeadlineError, PagemeshError
from pagemesh.kv_transfer.kv_import import KvImport
from pagemesh.messages import error_to_proto, finish_reason_to_proto, logprobs_to_proto
from pagemesh.rpc.call_context import CallContext, run_for
from pagemesh.telemetry.spans import trace_id_of
from pagemesh.v1 import decode_pb2, types_pb2
from pagemesh.worker.dispatcher import RequestEvent
from pagemesh.worker.worker import Worker

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_ENDS_OF_ITS_OWN: Final = (FinishReason.STOP, FinishReason.LENGTH)


def error_output(handle: int, error: PagemeshError) -> decode_pb2.RequestOutput:
    """The last output of a request that failed."""
    return decode_pb2.RequestOutput(
        handle=handle,
        finish_reason=types_pb2.FINISH_REASON_ERROR,
        error=error_to_proto(error),
    )


class DecodeRequest:
    """Turns the engine's events about one request into outputs, and ends it when its time is over.

    `on_end` is called once, when the last output was added to the buffer or the request was abandoned.
    """

    def __init__(
        self,
        worker: Worker,
        prefiller: RemotePrefiller,
        buffer: OutputBuffer,
        submission: Submission,
        on_end: Callable[[int], None],
    ) -> None:
        self._worker = worker
        self._prefiller = prefiller
        self._buffer = buffer
        self._submission = submission
        self._on_end = on_end
        self._span = begin_span(worker, submission)
        self._loop = asyncio.get_running_loop()
        submitted_at = self._loop.time()
        self._deadline = submitted_at + submission.timeout
        self._kv_outcome = KvOutcomeWatch(submitted_at, len(submission.request.prompt_token_ids))
        self._timer: asyncio.TimerHandle | None = None
        self._import: KvImport | None = None
        self._remote_prefill: asyncio.Task[None] | None = None
        self._is_cancelled = False

    @property
    def engine_request_id(self) -> str:
        """The engine's name for the request."""
        return self._submission.request.request_id

    def start(self) -> None:
        """Submit to the engine; raises UnavailableError when that is stopped."""
        try:
            self._worker.dispatcher.submit(self._submission.request, self._on_event)
        except PagemeshError:
            self._end()
            raise
        self._timer = self._loop.call_at(self._deadline, self._expire)

    def cancel(self) -> None:
        """Have the engine end the request; its last output follows.

        What other workers do for it ends at once: the engine may be in a long step.
        """
        self._is_cancelled = True
        self._worker.engine.cancel(self.engine_request_id)
        self._stop_import()

    def abandon(self) -> None:
        """End the request without an output: nobody listens any more."""
        self._worker.dispatcher.forget(self.engine_request_id)
        self.cancel()
        self._end()

    def move(self) -> None:
        """End the request with the output that it is to go on elsewhere; what is cached of it stays."""
        handle, moved = self._submission.handle, types_pb2.FINISH_REASON_MOVED
        self._tell(decode_pb2.RequestOutput(handle=handle, finish_reason=moved))
        self.abandon()

    def _expire(self) -> None:
        error = DeadlineError(f"the request took longer than {self._submission.timeout:g} s")
        self._tell(error_output(self._submission.handle, error))
        self.abandon()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stop_import()
        submission = self._submission
        log.debug(
            "request over",
            request_id=submission.client_request_id,
            trace_id=trace_id_of(submission.caller),
            engine_request_id=self.engine_request_id,
        )
        if self._span is not None:
            self._span.end()
        self._on_end(submission.handle)

    def _tell(self, output: decode_pb2.RequestOutput) -> None:
        if self._span is not None:
            self._span.on_output(output)
        self._buffer.add(output)

    def _stop_import(self) -> None:
        if self._remote_prefill is not None:
            self._remote_prefill.cancel()

    def _on_event(self, event: RequestEvent) -> None:
        if isinstance(event, KvGrant):
            self._fill(event)
        elif isinstance(event, RequestOutput):
            self._tell(self._translate(event))
            if event.finish_reason is not None:
                if self._import is not None:
                    self._import.is_needed = event.finish_reason not in _ENDS_OF_ITS_OWN
                self._end()

    def _fill(self, grant: KvGrant) -> None:
        if self._is_cancelled:
            # It was granted before the engine heard of that.
            self._worker.engine.finish_import(grant.request_id, grant.num_held_tokens)
            return
        submission = self._submission
        assert submission.plan is not None, "only requests with a plan wait for KV"
        self._import = KvImport(
            self._worker,
            submission.request,
            submission.client_request_id,
            grant,
            self._deadline,
        )
        span = submission.caller
        if self._span is not None:
            self._span.on_granted()
            span = self._span.span
        call = CallContext(submission.client_request_id, self._deadline)
        self._remote_prefill = run_for(
            call, span, self._prefiller.start, self._import, submission.plan
        )

    def _translate(self, output: RequestOutput) -> decode_pb2.RequestOutput:
        message = decode_pb2.RequestOutput(
            handle=self._submission.handle,
            token_ids=output.token_ids,
            embedding=output.embedding or b"",
        )
        self._kv_outcome.on_output(output, self._import, self._loop.time(), message)
        message.logprobs.extend(map(logprobs_to_proto, output.logprobs or ()))
        message.prompt_logprobs.extend(map(logprobs_to_proto, output.prompt_logprobs or ()))
        if output.finish_reason is not None:
            message.finish_reason = finish_reason_to_proto(output.finish_reason)
        if output.error is not None:
            message.error.CopyFrom(error_to_proto(output.error))
        return message


class KvOutcomeWatch:
    """Watches a request's outputs until the first token and all KV in front of it are there.

    That is what the router predicts of each way. All times are the event loop's, in seconds.
    """

    def __init__(self, submitted_at: float, num_prompt_tokens: int) -> None:
        self._submitted_at = submitted_at
        self._num_prompt_tokens = num_prompt_tokens
        self._first_output_at: float | None = None
        self._num_tokens = 0
        self._is_told = False

    def on_output(
        self,
        output: RequestOutput,
        kv: KvImport | None,
        now: float,
        message: decode_pb2.RequestOutput,
    ) -> None:
        """Add to the message of an output what is to be told with it.

        The usage comes with the first token or the embedding, and once for each request that gets one of
        them, the outcome. `kv` is what came from other workers; None when the engine computes the whole prompt.
        """
        if self._is_told or not (output.token_ids or output.embedding is not None):
            return
        is_first = self._first_output_at is None
        if self._first_output_at is None:
            self._first_output_at = now
        self._num_tokens += len(output.token_ids)
        num_cached_tokens = self._num_cached_tokens(output, kv)
        if is_first:
            message.prompt_usage.prompt_token_count = self._num_prompt_tokens
            message.prompt_usage.cached_token_count = num_cached_tokens
        is_over = output.finish_reason is not None
        ready_at = self._ready_at(self._first_output_at, kv, now, is_over=is_over)
        if ready_at is None:
            return
        self._is_told = True
        time_to_ready = duration_pb2.Duration()
        time_to_ready.FromNanoseconds(int((ready_at - self._submitted_at) * 1e9))
        outcome = types_pb2.KvOutcome(
            path=types_pb2.KV_PATH_LOCAL,
            time_to_ready=time_to_ready,
            cached_token_count=num_cached_tokens,
        )
        if kv is not None:
            outcome.path = kv.path(needs_kv=self._needs_kv)
            outcome.received_token_count = kv.num_received_tokens
        message.kv_outcome.CopyFrom(outcome)

    @property
    def _needs_kv(self) -> bool:
        """Whether the answer has gone on behind its first token."""
        return self._num_tokens > 1

    def _num_cached_tokens(self, output: RequestOutput, kv: KvImport | None) -> int:
        """Prompt tokens that nobody computed for this request; the last one always was."""
        num_reused = 0 if kv is None else kv.num_reused_tokens(needs_kv=self._needs_kv)
        # Of a resumed request, more than the prompt may have been cached.
        return min(output.num_cached_tokens + num_reused, self._num_prompt_tokens - 1)

    def _ready_at(
        self, first_output_at: float, kv: KvImport | None, now: float, *, is_over: bool
    ) -> float | None:
        """When the answer could go on; None while KV is missing."""
        if kv is None or not kv.has_first_token:
            # The token was sampled here, behind all KV.
            return now
        if kv.completed_at is not None:
            return max(first_output_at, kv.completed_at)
        # The step that computes what did not come gives the second token.
        return now if self._needs_kv or is_over else None
