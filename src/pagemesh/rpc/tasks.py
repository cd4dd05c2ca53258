"""Tasks of an event loop: waiting for what has to end, and a stream whose next item is made while one is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, Final, TypeVar

T = TypeVar("T")

CANCEL_AGAIN_S: Final = 1.0
"""Seconds in which a task that was cancelled has ended: what it still does then is to free things."""


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run something short that frees or flushes; a cancelled caller is cancelled only when it is over.

    When the work fails, that is raised, also to a cancelled caller: it must not be lost.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await until_done(task)
        finally:
            task.result()
        raise


async def until_done(future: asyncio.Future[T]) -> None:
    """Wait for the end, whatever it is; a caller that is cancelled meanwhile is cancelled only then."""
    was_cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            was_cancelled = True
    if not future.cancelled():
        future.exception()  # seen, so that asyncio does not report it as forgotten
    if was_cancelled:
        raise asyncio.CancelledError


async def cancel_to_end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended; it is asked again as long as it goes on.

    What the task waits for, a library's stream say, may end at the moment at which it is cancelled, and the
    request be lost with that: whoever asked once would wait for ever.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)


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
