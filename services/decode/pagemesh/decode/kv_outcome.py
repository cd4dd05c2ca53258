"""Finds out what came of the KV of one prompt: by which way, when the answer could go on, what was cached."""

from __future__ import annotations

from google.protobuf import duration_pb2

from pagemesh.core.request import RequestOutput
from pagemesh.kv_transfer.kv_import import KvImport
from pagemesh.v1 import decode_pb2, types_pb2


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
