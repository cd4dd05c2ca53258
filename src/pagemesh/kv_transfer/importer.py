"""Fills granted blocks with KV from other workers: asks one after another, and only for what is missing.

Whatever goes wrong costs time and nothing else: the KV that was verified until then stays, and the
engine computes the rest. Each grant is given back exactly once, also when its task never ran.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Literal

import grpc
import structlog

from pagemesh.core.request import EngineRequest
from pagemesh.errors import PagemeshError, UnavailableError
from pagemesh.kv_memory.peer import UNREACHABLE
from pagemesh.kv_transfer.endpoint import KvEndpoint
from pagemesh.kv_transfer.kv_import import KvImport, stream_span
from pagemesh.kv_transfer.peers import PeerChannels
from pagemesh.kv_transfer.streams import FETCH, PREFILL, KvStreams
from pagemesh.messages import sampling_to_proto
from pagemesh.rpc.call_context import outgoing_metadata
from pagemesh.rpc.status import as_pagemesh_error
from pagemesh.sampling.params import SamplingParams
from pagemesh.telemetry.metrics import transfer as declared
from pagemesh.v1 import kv_transfer_pb2, prefill_pb2, types_pb2

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_REASONS: Final = 64
"""Reasons of failures that are counted by their names; more than there are."""

OTHER_REASON: Final = "OTHER"
"""Stands for all that came later."""

PULL_SHARE: Final = 0.5
"""Of the time that a request has left, what a pull may take: what it does not bring can still be computed."""


class KvImporter:
    """Runs the imports of one worker, each as a task. Belongs to one event loop."""

    def __init__(self, endpoint: KvEndpoint, pull_path: Literal["pull", "remote_pull"]) -> None:
        """`pull_path` is what a pull of this worker is of a prompt's way, as metrics name it."""
        self._endpoint = endpoint
        self._pull_path = pull_path
        self._peers = PeerChannels(endpoint.identity)
        self._streams = KvStreams(endpoint)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reasons: set[str] = set()
        metrics = endpoint.metrics
        self._failures = metrics.counter(declared.KV_IMPORT_FAILURES)
        self._pulls = metrics.counter(declared.KV_PULLS)
        self._tokens_received = metrics.counter(declared.KV_TOKENS_RECEIVED)

    def start(self, kv: KvImport, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what fills the grant, out of `prefill` and `pull`; the end of the task gives the grant back.

        Cancel the task when the request ended. Its calls say what the present one does of itself.
        """
        task = asyncio.create_task(work, name="kv-import")
        self._tasks.add(task)
        # A callback and not a `finally`: a task that is cancelled before it began never enters one.
        task.add_done_callback(partial(self._finish, kv))
        return task

    async def close(self) -> None:
        """End all imports and close the channels. Idempotent."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._peers.close()
        await asyncio.to_thread(self._streams.close)

    async def prefill(
        self, kv: KvImport, peer: types_pb2.PeerWorker, source: kv_transfer_pb2.KvSource | None
    ) -> bool:
        """Have a prefill worker compute and send what is missing; whether everything came.

        The worker first pulls from `source`, if there is one.
        """
        request = prefill_pb2.PrefillRequest(
            prompt_token_ids=kv.token_ids,
            sampling=sampling_to_proto(_first_token_sampling(kv.request)),
            held_token_count=kv.num_verified_tokens,
            model_fingerprint=self._endpoint.info.model_fingerprint,
            kv_layout=self._endpoint.info.kv_layout,
            arithmetic=self._endpoint.info.arithmetic,
            cache_salt=kv.request.cache_salt,
            priority=kv.request.priority,
            source=source,
        )

        async def receive(channel: grpc.Channel) -> None:
            self._begin(request, kv, peer)
            prefill = PREFILL.client(channel)
            call = prefill(request, timeout=kv.seconds_left, metadata=outgoing_metadata())
            await self._streams.receive_prefill(call, kv, peer)

        return await self._try("prefill", kv, peer, kv.seconds_left, receive)

    def wanted_from(self, kv: KvImport, source: kv_transfer_pb2.KvSource) -> Sequence[bytes]:
        """Hashes of the missing blocks that the source is thought to hold; none when that is this worker."""
        if source.worker.worker_id == self._endpoint.info.worker_id:
            return ()
        return kv.grant.block_hashes[kv.num_verified_blocks : source.block_count]

    async def pull(self, kv: KvImport, source: kv_transfer_pb2.KvSource) -> None:
        """Fetch the blocks that are wanted from the source; there must be any."""
        seconds = kv.seconds_left * PULL_SHARE
        num_before = kv.num_verified_tokens
        hashes = self.wanted_from(kv, source)
        end_block = kv.num_verified_blocks + len(hashes)
        request = kv_transfer_pb2.FetchRequest(
            block_hashes=hashes,
            model_fingerprint=self._endpoint.info.model_fingerprint,
            kv_layout=self._endpoint.info.kv_layout,
            arithmetic=self._endpoint.info.arithmetic,
            first_block_index=kv.num_verified_blocks,
        )

        async def receive(channel: grpc.Channel) -> None:
            self._begin(request, kv, source.worker)
            fetch = FETCH.client(channel)
            call = fetch(request, timeout=seconds, metadata=outgoing_metadata())
            await self._streams.receive_fetch(call, kv, source.worker)

        outcome = "cancelled"
        try:
            came = await self._try("fetch", kv, source.worker, seconds, receive)
            has_all = kv.num_verified_blocks == end_block
            outcome = "failed" if not came else "complete" if has_all else "partial"
        finally:
            kv.num_pulled_tokens += kv.num_verified_tokens - num_before
            self._pulls.labels(self._pull_path, outcome).inc()

    async def _try(
        self,
        rpc: Literal["prefill", "fetch"],
        kv: KvImport,
        peer: types_pb2.PeerWorker,
        seconds: float,
        receive: Callable[[grpc.Channel], Awaitable[None]],
    ) -> bool:
        """Run one stream; whether it brought all that it should. Only cancellation is raised."""
        with stream_span(self._endpoint.tracer, rpc, kv, peer):
            try:
                async with asyncio.timeout(seconds), self._peers.use(peer.address) as channel:
                    try:
                        await receive(channel)
                    except UnavailableError as error:
                        if error.reason != UNREACHABLE:
                            raise
                        self._endpoint.transports.note_unreachable(peer, error.message)
                        await receive(channel)
            except (PagemeshError, grpc.RpcError, TimeoutError) as error:
                self._note_failure(rpc, kv, peer, as_pagemesh_error(error))
            except Exception as error:
                # Task boundary: a bug here must cost this request no more than a dead peer would.
                log.exception("receiving KV failed", request_id=kv.client_request_id)
                self._note_failure(rpc, kv, peer, as_pagemesh_error(error))
            else:
                return True
        return False

    def _begin(
        self,
        request: prefill_pb2.PrefillRequest | kv_transfer_pb2.FetchRequest,
        kv: KvImport,
        sender: types_pb2.PeerWorker,
    ) -> None:
        """Fill in what each stream has of its own.

        The sender is told of the host whose memory can be read here, unless its memory cannot.
        """
        request.stream_nonce = kv.draw_nonce()
        request.ClearField("caller_host")
        host = self._endpoint.transports.identity_for(sender)
        if host is not None:
            request.caller_host.CopyFrom(host)

    def _note_failure(
        self, rpc: str, kv: KvImport, peer: types_pb2.PeerWorker, error: PagemeshError
    ) -> None:
        kv.failure = error
        self._failures.labels(rpc, self._known_reason(error.reason)).inc()
        self._endpoint.failures.note(peer.worker_id, error.message)
        log.warning(
            "another worker did not deliver KV",
            request_id=kv.client_request_id,
            rpc=rpc,
            peer=peer.worker_id,
            reason=error.reason,
            error=error.message,
            num_verified_tokens=kv.num_verified_tokens,
            num_tokens=len(kv.token_ids),
        )

    def _known_reason(self, reason: str) -> str:
        """The reason as a label: other workers choose theirs, and labels are never forgotten."""
        if len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
        return reason if reason in self._reasons else OTHER_REASON

    def _finish(self, kv: KvImport, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("import failed", request_id=kv.client_request_id, exc_info=error)
        self._tokens_received.inc(kv.num_received_tokens)
        self._endpoint.engine.finish_import(kv.grant.request_id, kv.num_verified_tokens)


def _first_token_sampling(request: EngineRequest) -> SamplingParams:
    """How a prefill worker is to choose its token. Behind resumed ones nobody asks for it: this worker samples
    it, with all that follows from what is prompt and what is answer."""
    return SamplingParams() if request.resume_token_ids else request.sampling
