"""Streams that have no end of their own end when the process drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

Item = TypeVar("Item")


async def until_set(stop: asyncio.Event, items: AsyncIterator[Item]) -> AsyncGenerator[Item, None]:
    """The items (none of which is None) as they come, until they end or `stop` is set."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while not stop.is_set():
            # A task, so that it can be given up when `stop` comes first.
            coming = asyncio.ensure_future(_next(items))
            try:
                await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
                item = coming.result() if coming.done() else None
            finally:
                coming.cancel()
                # Ends at once; until then `items` could not be closed.
                await asyncio.wait({coming})
            if item is None:
                return
            yield item
    finally:
        stopping.cancel()


async def _next(items: AsyncIterator[Item]) -> Item | None:
    return await anext(items, None)
