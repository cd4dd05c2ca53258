"""Streams that have no end of their own end when the process drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

Item = TypeVar("Item")


async def until_set(stop: asyncio.Event, items: AsyncIterator[Item]) -> AsyncGenerator[Item, None]:
    """The items (none of which is None) as they come, until they end or `stop` is set."""
    waiting: asyncio.Timeout | None = None

    async def interrupt() -> None:
        await stop.wait()
        if waiting is not None:
            waiting.reschedule(0.0)

    interrupting = asyncio.ensure_future(interrupt())
    try:
        while not stop.is_set():
            try:
                # No time is set; a task for each item, to be given up, would take longer than all the rest.
                async with asyncio.timeout(None) as waiting:
                    item = await anext(items, None)
            except TimeoutError:
                if not stop.is_set():
                    raise
                return
            finally:
                waiting = None
            if item is None:
                return
            yield item
    finally:
        interrupting.cancel()
