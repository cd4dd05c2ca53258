"""Work on leased blocks: on threads, so that the loop goes on, and never longer than the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from pagemesh.rpc.tasks import until_done

P = ParamSpec("P")
T = TypeVar("T")

NUM_THREADS: Final = 2
"""Copies and checksums are bound by memory and the GIL: more threads make nothing faster."""


class BlockWorkers:
    """Threads that copy blocks."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="kv")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` on a thread; returns or raises only when it is over.

        Also a cancelled caller waits for it, and is cancelled then: the caller gives up its lease next,
        and a thread that still touched the blocks would corrupt whoever gets them.
        """
        work = self._executor.submit(function, *args, **kwargs)
        future = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not work.cancel():
                await until_done(future)
            raise

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        self._executor.shutdown()
