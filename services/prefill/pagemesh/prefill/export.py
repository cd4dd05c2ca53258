"""One export: what another worker holds of the prompt is pulled first, and what is computed leaves as it becomes known."""

from __future__ import annotations

import asyncio
import time

from opentelemetry import trace

from pagemesh.core.kv import KvExport, KvGrant, KvLayout, KvProgress
from pagemesh.core.request import EngineRequest, FinishReason, RequestOutput
from pagemesh.errors import InternalError, PagemeshError, UnavailableError
from pagemesh.kv_transfer.frames import KvPart, PartCutter
from pagemesh.kv_transfer.importer import KvImporter
from pagemesh.kv_transfer.kv_import import KvImport
from pagemesh.messages import require_peer
from pagemesh.rpc.call_context import current_call, run_for
from pagemesh.v1 import prefill_pb2
from pagemesh.worker.dispatcher import RequestEvent
from pagemesh.worker.worker import Worker


class Export:
    """How far one exported request is, what of it is to be sent next, and a wait for more."""

    def __init__(
        self, layout: KvLayout, num_held_tokens: int, num_tokens: int, max_part_bytes: int
    ) -> None:
        """Of a prompt of so many tokens, of which the caller holds the first blocks."""
        self.num_tokens = num_tokens
        self.block_ids: tuple[int, ...] = ()
        self.block_hashes: tuple[bytes, ...] = ()
        self.num_held_tokens = 0
        """Leading tokens found in the prefix cache."""
        self.ready_at = 0.0
        """Time, by time.monotonic, at which the last KV was there."""
        self._parts = PartCutter(layout, num_held_tokens, num_tokens, max_part_bytes)
        self._first_token: RequestOutput | None = None
        self._has_given_token = False
        self._end: RequestOutput | None = None
        self._news = asyncio.Event()

    @property
    def is_shipped(self) -> bool:
        """Whether everything was given to be sent, the first token as well."""
        return self._has_given_token and self._parts.is_done

    def on_event(self, event: RequestEvent) -> None:
        """Take note of what the engine made known."""
        if isinstance(event, KvExport):
            self.block_ids, self.block_hashes = event.block_ids, event.block_hashes
            self.num_held_tokens = event.num_held_tokens
        elif isinstance(event, KvProgress):
            self._parts.add_ready(event.num_tokens, event.num_layers)
            self.ready_at = time.monotonic()
        elif isinstance(event, RequestOutput):
            if event.token_ids:
                self._first_token = event
            if event.finish_reason is not None:
                self._end = event
        self._news.set()

    def next_item(self) -> RequestOutput | KvPart | None:
        """The first token, once, before all KV that waits; else the next part; None: nothing is ready.

        Raises what ended the request without a token: what is left of its KV is of no use then.
        """
        if self._first_token is None:
            if self._end is not None:
                raise _why(self._end)
        elif not self._has_given_token:
            self._has_given_token = True
            return self._first_token
        part = self._parts.next_part()
        if part is None and self._end is not None and not self._parts.is_done:
            raise InternalError("the request ended before all its KV was computed")
        return part

    async def wait(self) -> None:
        """Wait until something was made known since the last wait.

        Needs no deadline: the engine ends every request, and the caller's own deadline ends the RPC.
        """
        await self._news.wait()
        self._news.clear()


def _why(end: RequestOutput) -> PagemeshError:
    if end.error is not None:
        return end.error
    if end.finish_reason is FinishReason.CANCELLED:
        return UnavailableError("the worker is stopping", reason="DRAINING")
    return InternalError("the request ended without a token")


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
