"""Sends requests at their times, whether or not those before them have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final

from pagemesh.bench.progress import Progress
from pagemesh.bench.record import Record

Send = Callable[[bytes, Record], Awaitable[None]]
"""Sends a request and fills its record; never fails."""

_PATIENCE_S: Final = 5.0
"""For requests that are cut off to end."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests, and how they are sent."""

    bodies: Sequence[bytes]
    due_times: Sequence[float]
    """Seconds from the beginning."""
    max_concurrency: int | None
    """Most under way; None for any number."""
    request_timeout: float
    """Seconds that the sending of one takes at most."""

    @property
    def longest_seconds(self) -> float:
        """Longer than the last request can take from its time on, its waiting for the others included."""
        num_rounds = len(self.bodies) // (self.max_concurrency or len(self.bodies)) + 1
        return num_rounds * self.request_timeout + _PATIENCE_S


@dataclass(frozen=True, slots=True)
class Run:
    """What became of the requests of one rate."""

    records: list[Record]
    """Of all of them, in the order in which they were due."""
    begin: float
    end: float
    """Of time.perf_counter(), from the beginning to when the last one had ended or the run was stopped."""
    is_stopped: bool

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


async def run_load(send: Send, load: Load, stop: asyncio.Event, progress: Progress) -> Run:
    """Send each request when it is due; without a limit, latencies begin then, even if the client should be late.

    When `stop` is set nothing more is sent, and what is under way is cut off.
    """
    begin = time.perf_counter()
    records = [Record(begin + due) for due in load.due_times]
    places = (
        nullcontext() if load.max_concurrency is None else asyncio.Semaphore(load.max_concurrency)
    )

    async def one(body: bytes, record: Record) -> None:
        async with places:
            record.sent = time.perf_counter()
            waits_here = load.max_concurrency is not None
            record.begin = record.sent if waits_here else min(record.due, record.sent)
            progress.sent()
            await send(body, record)
        progress.ended(record)

    tasks: list[asyncio.Task[None]] = []
    for body, record in zip(load.bodies, records, strict=True):
        if await _is_stopped(stop, record.due - time.perf_counter()):
            break
        tasks.append(asyncio.create_task(one(body, record)))
    if tasks:
        await _await_ended(tasks, stop, load.longest_seconds)
    is_stopped = stop.is_set()
    return Run(records, begin, time.perf_counter(), is_stopped)


async def _is_stopped(stop: asyncio.Event, seconds: float) -> bool:
    """Wait so long, unless it is stopped before that; those that are under way get their turn in any case."""
    if seconds <= 0:
        await asyncio.sleep(0)
    elif not stop.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stop.wait()
    return stop.is_set()


async def _await_ended(
    tasks: Sequence[asyncio.Task[None]], stop: asyncio.Event, seconds: float
) -> None:
    """Until all have ended, each of which has a deadline of its own, or it is stopped."""
    try:
        async with asyncio.timeout(seconds):
            ended = asyncio.create_task(asyncio.wait(tasks))
            stopped = asyncio.create_task(stop.wait())
            either: set[asyncio.Future[Any]] = {ended, stopped}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiting in (ended, stopped, *tasks):
            waiting.cancel()
        await asyncio.wait(tasks, timeout=_PATIENCE_S)
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()):
            raise error
