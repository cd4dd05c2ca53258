"""What the router runs for its clients at the moment, so that it can stop without cutting anybody off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pagemesh.errors import PagemeshError, UnavailableError


class Failable(Protocol):
    """Something that a client waits for."""

    def fail(self, error: PagemeshError) -> None:
        """Have its client told that it ends with this error."""
        ...


class InProgress:
    """A set of them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._running: set[Failable] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def hold(self, job: Failable) -> Iterator[None]:
        """A job runs until the block is left."""
        self._running.add(job)
        self._idle.clear()
        try:
            yield
        finally:
            self._running.discard(job)
            if not self._running:
                self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Give running jobs this long, then fail the rest.

        Their clients are told so, even if this is cancelled: behind the gateway, a cancelled stream looks
        like a complete one.
        """
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
        finally:
            for job in self._running:
                job.fail(UnavailableError("the router is stopping", reason="DRAINING"))
