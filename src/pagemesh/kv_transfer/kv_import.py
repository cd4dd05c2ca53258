"""One import: the blocks that the engine granted a request, what of its KV came, and by which way."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Tracer

from pagemesh.core.kv import KvGrant
from pagemesh.core.request import EngineRequest
from pagemesh.errors import PagemeshError
from pagemesh.kv_transfer.endpoint import KvEndpoint
from pagemesh.kv_transfer.receiver import KvReceiver, ReceivedKv
from pagemesh.kv_transfer.transport_choice import ChooseTransport
from pagemesh.messages import logprobs_from_proto
from pagemesh.rpc.spans import call_span
from pagemesh.telemetry import span_names
from pagemesh.telemetry.spans import is_sampled
from pagemesh.v1 import kv_transfer_pb2, types_pb2


class KvImport:
    """A grant while it is filled, by one stream after another. Belongs to one event loop.

    What one stream brought stays, whatever became of the stream; the next one brings only the rest.
    """

    def __init__(
        self,
        endpoint: KvEndpoint,
        request: EngineRequest,
        client_request_id: str,
        grant: KvGrant,
        deadline: float,
    ) -> None:
        self.request = request
        self.client_request_id = client_request_id
        self.grant = grant
        self.deadline = deadline
        """Loop time at which the request's time is over."""
        self.is_needed = True
        """Whether the request has not come to its own end, which may be its first token."""
        self.num_pulled_tokens = 0
        """Tokens whose KV came out of another worker's cache; the others' was computed for this."""
        self.failure: PagemeshError | None = None
        """Why the last stream that failed did; None while none has."""
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self.token_ids = (*request.prompt_token_ids, *request.resume_token_ids)
        """Of which KV is to come: the prompt's, and those that were generated elsewhere."""
        self._received = ReceivedKv(grant, endpoint.engine.info.layout, len(self.token_ids))
        self._first_token: kv_transfer_pb2.FirstToken | None = None
        self._stream_nonce = 0
        self._first_token_at = 0.0
        self._num_promised_tokens = 0
        self.completed_at: float | None = None
        """Loop time at which all KV was known to be here; None while something is missing."""

    @property
    def seconds_left(self) -> float:
        """Until the request's time is over."""
        return self.deadline - self._loop.time()

    @property
    def num_verified_tokens(self) -> int:
        """Leading tokens whose KV is in the blocks: the held ones and what was verified."""
        return self._received.num_verified_tokens

    @property
    def num_received_tokens(self) -> int:
        """Tokens whose KV came from other workers until now."""
        return self.num_verified_tokens - self.grant.num_held_tokens

    def num_reused_tokens(self, *, needs_kv: bool) -> int:
        """Of these, those whose KV no worker computed for this request.

        An answer that was over with another worker's first token needs no KV: what that worker had counts.
        """
        if self._first_token is not None and not needs_kv:
            return self._num_promised_tokens
        return self._received.num_reused_tokens

    @property
    def num_verified_blocks(self) -> int:
        """Leading blocks of which nothing is missing; all of them when it is complete."""
        return self._received.num_verified_blocks

    @property
    def is_complete(self) -> bool:
        """Whether all KV is in the blocks."""
        return self._received.is_complete

    @property
    def is_worth_asking(self) -> bool:
        """Whether at least a block's tokens are missing; fewer are computed sooner than asked for."""
        num_missing = len(self.token_ids) - self.num_verified_tokens
        return num_missing >= self._endpoint.engine.info.layout.block_size

    @property
    def has_first_token(self) -> bool:
        """Whether another worker has sampled the first token."""
        return self._first_token is not None

    @property
    def awaits_first_token(self) -> bool:
        """Whether another worker may sample it: behind resumed tokens, this one does."""
        return self._first_token is None and not self.request.resume_token_ids

    def path(self, *, needs_kv: bool) -> types_pb2.KvPath.ValueType:
        """How the answer came to its KV, when what did not come was computed here.

        An answer that was over with the first token needed no KV behind that.
        """
        is_prefilled = self.is_complete and self.num_received_tokens > self.num_pulled_tokens
        if self._first_token is not None and (is_prefilled or not needs_kv):
            has_pulled = self._first_token.received_token_count > 0
            return types_pb2.KV_PATH_REMOTE_PULL if has_pulled else types_pb2.KV_PATH_REMOTE
        if is_prefilled:
            return types_pb2.KV_PATH_REMOTE
        return types_pb2.KV_PATH_PULL if self.num_pulled_tokens else types_pb2.KV_PATH_LOCAL

    @property
    def exposed_seconds(self) -> float:
        """Of a complete import: for how long KV was waited for behind the first token; 0 without one."""
        if self._first_token is None:
            return 0.0
        assert self.completed_at is not None, "KV is missing"
        return max(0.0, self.completed_at - self._first_token_at)

    def draw_nonce(self) -> int:
        """Draw the number of the next stream, which all its messages must have."""
        self._stream_nonce = secrets.randbits(64)
        return self._stream_nonce

    def begin_stream(
        self, sender: types_pb2.PeerWorker, choose_transport: ChooseTransport
    ) -> KvReceiver:
        """A receiver for a stream that begins behind what is verified; the one before must be over."""
        stamp = kv_transfer_pb2.KvStamp(
            model_fingerprint=self._endpoint.info.model_fingerprint,
            kv_layout=self._endpoint.info.kv_layout,
            arithmetic=self._endpoint.info.arithmetic,
            worker_id=sender.worker_id,
            epoch=sender.epoch,
            stream_nonce=self._stream_nonce,
        )
        return KvReceiver(choose_transport, stamp, self._received)

    def on_message(self, first_token: kv_transfer_pb2.FirstToken | None) -> None:
        """Take note of what a verified message brought, and report the first token, once."""
        if self.completed_at is None and self.is_complete:
            self.completed_at = self._loop.time()
        if first_token is None or not self.awaits_first_token:
            return
        self._first_token = first_token
        self._first_token_at = self._loop.time()
        self._num_promised_tokens = self._received.num_reused_with(first_token.reused_token_count)
        logprobs = None
        if first_token.HasField("logprobs"):
            logprobs = logprobs_from_proto(first_token.logprobs)
        self._endpoint.engine.first_token(self.grant.request_id, first_token.token_id, logprobs)


@contextmanager
def stream_span(
    tracer: Tracer, rpc: Literal["prefill", "fetch"], kv: KvImport, sender: types_pb2.PeerWorker
) -> Iterator[None]:
    """Around one stream, as whoever asked for it sees it, if the request's trace is recorded."""
    if not is_sampled(trace.get_current_span()):
        yield
        return
    num_before, failure_before = kv.num_verified_tokens, kv.failure
    name = span_names.REMOTE_PREFILL if rpc == "prefill" else span_names.PULL
    with call_span(tracer, name, {span_names.WORKER: sender.worker_id}, SpanKind.CLIENT) as span:
        try:
            yield
        finally:
            span.set_attribute(span_names.KV_RECEIVED, kv.num_verified_tokens - num_before)
            if kv.failure is not None and kv.failure is not failure_before:
                # What it costs is time: the request goes on without.
                span.set_attribute(span_names.ERROR_TYPE, kv.failure.reason)
