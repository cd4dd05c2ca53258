"""Finds out what came of the KV of one prompt: by which way, and when the answer could go on."""

from __future__ import annotations

from google.protobuf import duration_pb2

from pagemesh.engine.interface import RequestOutput
from pagemesh.v1 import types_pb2
from pagemesh.worker.kv_import import KvImport


class KvOutcomeWatch:
    """Watches a request's outputs until the first token and all KV in front of it are there.

    That is what the router predicts of each way. All times are the event loop's, in seconds.
    """

    def __init__(self, submitted_at: float) -> None:
        self._submitted_at = submitted_at
        self._first_token_at = 0.0
        self._num_tokens = 0
        self._is_told = False

    def on_output(
        self, output: RequestOutput, kv: KvImport | None, now: float
    ) -> types_pb2.KvOutcome | None:
        """What is to be told with this output; something once for each request that gets tokens.

        `kv` is what came from other workers; None when the engine computes the whole prompt.
        """
        if self._is_told or not output.token_ids:
            return None
        if not self._num_tokens:
            self._first_token_at = now
        self._num_tokens += len(output.token_ids)
        ready_at = self._ready_at(kv, now, is_over=output.finish_reason is not None)
        if ready_at is None:
            return None
        self._is_told = True
        time_to_ready = duration_pb2.Duration()
        time_to_ready.FromNanoseconds(int((ready_at - self._submitted_at) * 1e9))
        if kv is None:
            return types_pb2.KvOutcome(path=types_pb2.KV_PATH_LOCAL, time_to_ready=time_to_ready)
        return types_pb2.KvOutcome(
            path=kv.path(needs_kv=self._num_tokens > 1),
            time_to_ready=time_to_ready,
            received_token_count=kv.num_received_tokens,
        )

    def _ready_at(self, kv: KvImport | None, now: float, *, is_over: bool) -> float | None:
        """When the answer could go on; None while KV is missing."""
        if kv is None or not kv.has_first_token:
            # The token was sampled here, behind all KV.
            return now
        if kv.completed_at is not None:
            return max(self._first_token_at, kv.completed_at)
        # The step that computes what did not come gives the second token.
        return now if self._num_tokens > 1 or is_over else None
