"""A prompt whose beginning another worker holds: that is pulled before the rest is computed."""

from __future__ import annotations

import asyncio

from opentelemetry import trace

from pagemesh.core.kv import KvGrant
from pagemesh.core.request import EngineRequest
from pagemesh.kv_transfer.importer import KvImporter
from pagemesh.kv_transfer.kv_import import KvImport
from pagemesh.messages import require_peer
from pagemesh.rpc.call_context import current_call, run_for
from pagemesh.v1 import prefill_pb2
from pagemesh.worker.worker import Worker


def has_source(request: prefill_pb2.PrefillRequest) -> bool:
    """Whether another worker is to be asked; InvalidRequestError when it cannot be."""
    if not request.HasField("source"):
        return False
    require_peer(request.source.worker, "source")
    return True


class SourcePull:
    """Fills the blocks that the engine grants one export. Whatever fails, the prompt is computed."""

    def __init__(
        self,
        worker: Worker,
        importer: KvImporter,
        request: prefill_pb2.PrefillRequest,
        engine_request: EngineRequest,
    ) -> None:
        self._worker = worker
        self._importer = importer
        self._request = request
        self._engine_request = engine_request
        # The grant comes outside of the call for which it is used.
        self._call, self._span = current_call(), trace.get_current_span()
        self._kv: KvImport | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def num_pulled_tokens(self) -> int:
        """Prompt tokens whose KV came until now; all that come, before any behind them is computed."""
        return 0 if self._kv is None else self._kv.num_received_tokens

    def fill(self, grant: KvGrant) -> None:
        """Pull what the source holds and the grant lacks, then give the grant back."""
        deadline = self._call.deadline
        assert deadline is not None, "a call without a deadline was refused"
        self._kv = kv = KvImport(
            self._worker, self._engine_request, self._call.request_id, grant, deadline
        )
        self._task = run_for(self._call, self._span, self._importer.start, kv, self._run(kv))

    def cancel(self) -> None:
        """Give the grant back as soon as nothing writes any more, if there is one."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, kv: KvImport) -> None:
        if self._importer.wanted_from(kv, self._request.source):
            await self._importer.pull(kv, self._request.source)
