"""One export: what the engine has made known of a prompt's KV, for the stream that ships it."""

from __future__ import annotations

import asyncio

from pagemesh.engine.interface import FinishReason, KvProgress, RequestOutput
from pagemesh.errors import InternalError, UnavailableError
from pagemesh.worker.dispatcher import RequestEvent


class Export:
    """How far one exported request is, and a wait for it to get further."""

    def __init__(self) -> None:
        self.first_token: RequestOutput | None = None
        self.block_ids: tuple[int, ...] = ()
        self.block_hashes: tuple[bytes, ...] = ()
        self.num_computed_tokens = 0
        self._end: RequestOutput | None = None
        self._news = asyncio.Event()

    def on_event(self, event: RequestEvent) -> None:
        """Take note of what a step made known."""
        if isinstance(event, KvProgress):
            self.block_ids, self.block_hashes = event.block_ids, event.block_hashes
            self.num_computed_tokens = event.num_tokens
        elif isinstance(event, RequestOutput):
            if event.token_ids:
                self.first_token = event
            if event.finish_reason is not None:
                self._end = event
        self._news.set()

    def num_ready_tokens(self, block_size: int, num_tokens: int) -> int:
        """Tokens that may be shipped: full blocks, and the last one when the prompt ends in it."""
        if self.num_computed_tokens >= num_tokens:
            return num_tokens
        return self.num_computed_tokens // block_size * block_size

    async def wait(self) -> None:
        """Wait for news; raises when the request is over and there can be none.

        Needs no deadline: the engine ends every request, and the caller's own deadline ends the RPC.
        """
        if self._end is None or self._news.is_set():
            await self._news.wait()
            self._news.clear()
            return
        if self._end.error is not None:
            raise self._end.error
        if self._end.finish_reason is FinishReason.CANCELLED:
            raise UnavailableError("the worker is stopping", reason="DRAINING")
        raise InternalError("the request ended before all its KV was computed")
