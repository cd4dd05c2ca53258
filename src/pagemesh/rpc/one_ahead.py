"""A stream whose next item is made while the one before is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from pagemesh.rpc.cancelling import until_done

T = TypeVar("T")


async def one_ahead(items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """The items of a generator, of which at most one waits to be asked for.

    Closing this closes the generator, behind what it is doing then: so its `finally` is a place where
    leases can be given back.
    """
    async with aclosing(items):
        following = _next(items)
        try:
            while True:
                try:
                    item = await following
                except StopAsyncIteration:
                    return
                following = _next(items)
                yield item
        finally:
            following.cancel()
            await until_done(following)


def _next(items: AsyncGenerator[T]) -> asyncio.Task[T]:
    async def take() -> T:
        return await anext(items)

    return asyncio.create_task(take(), name="next-message")
