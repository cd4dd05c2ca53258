"""Waiting for what has to end although the one who waits is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
