"""Prompts prefilled on another worker: its KV stream is received into blocks that the engine granted.

Whatever goes wrong costs time and nothing else: the KV that was verified until then stays, and the
engine computes the rest. Each grant is given back exactly once, also when its task never ran.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

import grpc
import structlog

from pagemesh.decode.peers import PeerChannels
from pagemesh.engine.interface import EngineRequest, KvGrant
from pagemesh.errors import KvIntegrityError, PagemeshError, UnavailableError
from pagemesh.kvship.receive import ExpectedKv, KvReceiver
from pagemesh.rpc.boundary import REQUEST_ID_KEY
from pagemesh.rpc.status import as_pagemesh_error
from pagemesh.telemetry import metrics as declared
from pagemesh.v1 import decode_pb2, kv_transfer_pb2, prefill_pb2, prefill_pb2_grpc, types_pb2
from pagemesh.worker.messages import logprobs_from_proto, sampling_to_proto
from pagemesh.worker.worker import Worker

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

STALL_TIMEOUT: Final = 10.0
"""Seconds without a message after which a prefill worker is given up: longer than any chunk takes, and
short enough that a client still waits for its first token."""


@dataclass(frozen=True, slots=True)
class RemotePrefill:
    """A request whose prompt is to be prefilled elsewhere."""

    client_request_id: str
    request: EngineRequest
    plan: decode_pb2.PrefillPlan
    deadline: float
    """Loop time at which the request's time is over."""

    @property
    def worker(self) -> types_pb2.PeerWorker:
        """Where it is prefilled."""
        return self.plan.workers[0]


class RemotePrefiller:
    """Runs the remote prefills of one decode worker, each as a task. Belongs to one event loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._peers = PeerChannels()
        self._tasks: set[asyncio.Task[None]] = set()
        metrics = worker.metrics
        self._outcomes = metrics.counter(declared.REMOTE_PREFILLS)
        self._fallbacks = metrics.counter(declared.REMOTE_PREFILL_FALLBACKS)
        self._rejected = metrics.counter(declared.KV_REJECTED)
        self._seconds = metrics.histogram(declared.REMOTE_PREFILL_SECONDS)
        self._tokens_received = metrics.counter(declared.KV_TOKENS_RECEIVED)
        self._bytes_received = metrics.counter(declared.KV_BYTES_RECEIVED)

    def start(self, prefill: RemotePrefill, grant: KvGrant) -> asyncio.Task[None]:
        """Fill the granted blocks; cancel the task when the request ended. It gives the grant back."""
        info = self._worker.info
        receiver = KvReceiver(
            self._worker.engine.kv,
            ExpectedKv(
                worker_id=prefill.worker.worker_id,
                epoch=prefill.worker.epoch,
                model_fingerprint=info.model_fingerprint,
                layout=self._worker.engine.info.layout,
                num_tokens=len(prefill.request.prompt_token_ids),
                grant=grant,
            ),
        )
        task = asyncio.create_task(self._run(prefill, grant, receiver), name="remote-prefill")
        self._tasks.add(task)
        # A callback and not a `finally`: a task that is cancelled before it began never enters one.
        task.add_done_callback(partial(self._finish, grant, receiver))
        return task

    async def close(self) -> None:
        """End all remote prefills and close the channels. Idempotent."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._peers.close()

    def _finish(self, grant: KvGrant, receiver: KvReceiver, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._tokens_received.inc(receiver.num_verified_tokens - grant.num_held_tokens)
        if task.cancelled():
            self._outcomes.labels("cancelled").inc()
        self._worker.engine.finish_import(grant.request_id, receiver.num_verified_tokens)

    async def _run(self, prefill: RemotePrefill, grant: KvGrant, receiver: KvReceiver) -> None:
        num_missing = len(prefill.request.prompt_token_ids) - grant.num_held_tokens
        if num_missing < self._worker.engine.info.layout.block_size:
            # Less than one block, which is computed here sooner than asked for.
            self._outcomes.labels("local").inc()
            return
        started_at = time.monotonic()
        try:
            async with asyncio.timeout_at(prefill.deadline):
                await self._receive(prefill, grant, receiver)
        except (PagemeshError, grpc.aio.AioRpcError, TimeoutError) as error:
            self._fall_back(prefill, receiver, as_pagemesh_error(error))
        except Exception as error:
            # Task boundary: a bug here must cost this request no more than a dead peer would.
            log.exception("remote prefill failed", request_id=prefill.client_request_id)
            self._fall_back(prefill, receiver, as_pagemesh_error(error))
        else:
            self._outcomes.labels("complete").inc()
            self._seconds.observe(time.monotonic() - started_at)

    async def _receive(self, prefill: RemotePrefill, grant: KvGrant, receiver: KvReceiver) -> None:
        async with self._peers.use(prefill.worker.address) as channel:
            stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
            call = stub.Prefill(
                self._prefill_request(prefill, grant),
                timeout=prefill.deadline - asyncio.get_running_loop().time(),
                metadata=((REQUEST_ID_KEY, prefill.client_request_id),),
            )
            try:
                has_token = False
                while not (has_token and receiver.is_complete):
                    chunk = await self._next_chunk(call, prefill)
                    has_token |= await self._accept(chunk, grant, receiver)
            finally:
                call.cancel()

    async def _next_chunk(
        self,
        call: grpc.aio.UnaryStreamCall[prefill_pb2.PrefillRequest, kv_transfer_pb2.KvChunk],
        prefill: RemotePrefill,
    ) -> kv_transfer_pb2.KvChunk:
        stalled = asyncio.timeout(STALL_TIMEOUT)
        try:
            async with stalled:
                chunk = await call.read()
        except TimeoutError as error:
            if not stalled.expired():
                raise
            raise UnavailableError(
                f"{prefill.worker.worker_id} sent nothing for {STALL_TIMEOUT:g} s",
                reason="KV_STALLED",
            ) from error
        if not isinstance(chunk, kv_transfer_pb2.KvChunk):
            raise UnavailableError("the stream ended before all KV", reason="KV_INCOMPLETE")
        return chunk

    async def _accept(
        self, chunk: kv_transfer_pb2.KvChunk, grant: KvGrant, receiver: KvReceiver
    ) -> bool:
        """Use one message; whether it was the first token."""
        try:
            if chunk.HasField("blocks"):
                first_token = await self._worker.block_workers.run(receiver.accept, chunk)
            else:
                # Nothing to copy: the way to a thread and back would only delay the first token.
                first_token = receiver.accept(chunk)
        except KvIntegrityError as error:
            self._rejected.labels(error.reason).inc()
            raise
        self._bytes_received.inc(len(chunk.blocks.payload))
        if first_token is None:
            return False
        logprobs = None
        if first_token.HasField("logprobs"):
            logprobs = logprobs_from_proto(first_token.logprobs)
        self._worker.engine.first_token(grant.request_id, first_token.token_id, logprobs)
        return True

    def _prefill_request(
        self, prefill: RemotePrefill, grant: KvGrant
    ) -> prefill_pb2.PrefillRequest:
        request = prefill.request
        return prefill_pb2.PrefillRequest(
            request_id=prefill.client_request_id,
            prompt_token_ids=request.prompt_token_ids,
            sampling=sampling_to_proto(request.sampling),
            held_token_count=grant.num_held_tokens,
            model_fingerprint=self._worker.info.model_fingerprint,
            kv_layout=self._worker.info.kv_layout,
            cache_salt=request.cache_salt,
            priority=request.priority,
        )

    def _fall_back(
        self, prefill: RemotePrefill, receiver: KvReceiver, error: PagemeshError
    ) -> None:
        self._outcomes.labels("fallback").inc()
        self._fallbacks.labels(error.reason).inc()
        log.warning(
            "remote prefill failed, computing the rest here",
            request_id=prefill.client_request_id,
            prefill_worker=prefill.worker.worker_id,
            reason=error.reason,
            error=error.message,
            num_received_tokens=receiver.num_verified_tokens,
            num_prompt_tokens=len(prefill.request.prompt_token_ids),
        )
