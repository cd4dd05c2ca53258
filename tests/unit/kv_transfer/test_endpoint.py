"""Copies on threads end before whoever asked for them goes on, also when it is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from pagemesh.kv_transfer.endpoint import BlockThreads


@pytest.fixture
def workers() -> Iterator[BlockThreads]:
    workers = BlockThreads()
    yield workers
    workers.close()


async def test_a_result_comes_back(workers: BlockThreads) -> None:
    assert await workers.run(divmod, 17, 5) == (3, 2)


async def test_an_exception_comes_back(workers: BlockThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        await workers.run(divmod, 1, 0)


async def test_a_cancelled_caller_waits_for_the_copy(workers: BlockThreads) -> None:
    started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def copy() -> None:
        started.set()
        may_end.wait(5)
        ended.set()

    task = asyncio.create_task(workers.run(copy))
    await asyncio.to_thread(started.wait, 5)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_copy_that_fails_after_the_cancellation_is_no_news(workers: BlockThreads) -> None:
    started, may_end = threading.Event(), threading.Event()

    def fail() -> None:
        started.set()
        may_end.wait(5)
        raise ValueError("too late")

    task = asyncio.create_task(workers.run(fail))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_copy_that_has_not_begun_never_does(workers: BlockThreads) -> None:
    may_end = threading.Event()
    busy = [asyncio.create_task(workers.run(may_end.wait, 5)) for _ in range(2)]
    ran = threading.Event()
    task = asyncio.create_task(workers.run(ran.set))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()
    await asyncio.gather(*busy)
    assert not ran.is_set()
