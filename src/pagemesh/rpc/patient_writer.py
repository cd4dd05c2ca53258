"""Writes the messages of one call; a caller that reads nothing for too long loses it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import grpc


class PatientWriter:
    """A block in which messages are written; raises TimeoutError when one of them waits longer than `seconds`.

    One timer for all of them, which looks again: a timer for each message would cost as much as its frame.
    """

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], seconds: float) -> None:
        self._context = context
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._writing_since: float | None = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._timer = self._loop.call_later(self._seconds, self._check)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(exc_type, exc, traceback)

    async def write(self, message: Any) -> None:
        """Write one, when there is room for it."""
        self._writing_since = self._loop.time()
        await self._context.write(message)
        self._writing_since = None

    def _check(self) -> None:
        now = self._loop.time()
        since = now if self._writing_since is None else self._writing_since
        if now >= since + self._seconds:
            self._limit.reschedule(now)
        else:
            self._timer = self._loop.call_at(since + self._seconds, self._check)
