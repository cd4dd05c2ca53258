"""What the kvstore does now and then: drop silent workers, free what is left of them, count; and end streams at its end.

Streams that have no end of their own end when the process drains.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeVar

import structlog

from pagemesh.errors import UnavailableError
from pagemesh.kvstore.catalog import Catalog
from pagemesh.kvstore.index import BlockIndex, IndexMetrics
from pagemesh.kvstore.known_peers import RemoteMember
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import kvstore as declared

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


_log = structlog.get_logger(__name__)

TIDY_SLICE = 2048
"""Blocks freed at a time between two turns of the event loop: about a millisecond, or two in Redis."""

LATE_S = 0.1
"""Seconds. A round that comes so late shows that the event loop is behind: events that have come wait to be read,
each for some of its turns."""

MOST_LATE_ROUNDS = 10
"""In a row. Whoever is always behind has to look at some time: what a worker that is gone left behind must not stay
for ever."""


class Housekeeper:
    """Runs beside the servicer, on the same event loop."""

    def __init__(
        self,
        catalog: Catalog,
        index: BlockIndex,
        index_metrics: IndexMetrics,
        metrics: Metrics,
        period: float,
        clock: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._index = index
        self._index_metrics = index_metrics
        self._period = period
        self._clock = clock
        self._due_at = clock() + period
        self._num_late = 0
        self._num_workers = metrics.gauge(declared.KVSTORE_WORKERS)
        self._num_remote = metrics.gauge(declared.KVSTORE_REMOTE_WORKERS)

    async def run(self) -> None:
        """Tick every `period` seconds until cancelled."""
        while True:
            await asyncio.sleep(self._period)
            try:
                await self.tick()
            except Exception:
                # Task boundary: the next round may fare better.
                _log.exception("housekeeping_failed")

    async def tick(self) -> None:
        """One round.

        Where the process itself was stopped for a while, or has much to do, heartbeats are still waiting to be
        read: nobody is dropped before a round is on time again, or too many were late.
        """
        try:
            is_late = self._clock() > self._due_at + LATE_S
            self._num_late = self._num_late + 1 if is_late else 0
            if not is_late or self._num_late > MOST_LATE_ROUNDS:
                await self._catalog.drop_silent()
            await self._count_and_tidy()
        finally:
            self._due_at = self._clock() + self._period

    async def _count_and_tidy(self) -> None:
        members = self._catalog.members()
        self._num_workers.set(len(members))
        self._num_remote.set(sum(isinstance(member, RemoteMember) for member in members))
        try:
            await self._tidy()
            self._index_metrics.on_usage(await self._index.usage())
        except UnavailableError:
            # Who keeps the index has said so already, and this is tried again in the next round.
            return

    async def _tidy(self) -> None:
        """Free what is left of dropped workers; what half a period does not suffice for waits for the next
        round, as silent workers do not."""
        stop_at = time.monotonic() + self._period / 2
        has_more = True
        while has_more and time.monotonic() < stop_at:
            has_more = await self._index.tidy(TIDY_SLICE)
            await asyncio.sleep(0)
