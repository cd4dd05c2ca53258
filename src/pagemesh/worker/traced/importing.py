"""Spans of KV that comes from other workers, as whoever asked for it sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pagemesh.rpc.call_context import current_call
from pagemesh.rpc.call_spans import call_span
from pagemesh.telemetry import span_names as names
from pagemesh.telemetry.otlp import OtlpTracer
from pagemesh.v1 import kv_transfer_pb2, types_pb2
from pagemesh.worker.interfaces import Importer
from pagemesh.worker.kv_import import KvImport


class TracedImporter:
    """An `Importer` each of whose streams is a span of the request that it is for."""

    def __init__(self, inner: Importer, tracer: OtlpTracer) -> None:
        self._inner = inner
        self._tracer = tracer

    def start(self, kv: KvImport, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._inner.start(kv, work)

    async def prefill(
        self, kv: KvImport, peer: types_pb2.PeerWorker, source: kv_transfer_pb2.KvSource | None
    ) -> bool:
        with self._stream(names.REMOTE_PREFILL, kv, peer):
            return await self._inner.prefill(kv, peer, source)

    def wanted_from(self, kv: KvImport, source: kv_transfer_pb2.KvSource) -> Sequence[bytes]:
        return self._inner.wanted_from(kv, source)

    async def pull(self, kv: KvImport, source: kv_transfer_pb2.KvSource) -> None:
        with self._stream(names.PULL, kv, source.worker):
            await self._inner.pull(kv, source)

    async def close(self) -> None:
        await self._inner.close()

    @contextmanager
    def _stream(self, name: str, kv: KvImport, peer: types_pb2.PeerWorker) -> Iterator[None]:
        if not current_call().trace.is_sampled:
            yield
            return
        num_before, failure_before = kv.num_verified_tokens, kv.failure
        with call_span(self._tracer, name, {names.WORKER: peer.worker_id}, "client") as span:
            try:
                yield
            finally:
                span.set({names.KV_RECEIVED: kv.num_verified_tokens - num_before})
                if kv.failure is not None and kv.failure is not failure_before:
                    # What it costs is time: the request goes on without.
                    span.set({names.ERROR_TYPE: kv.failure.reason})
