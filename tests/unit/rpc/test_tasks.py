"""Tasks end before whoever cancels them goes on; items are made one ahead, and nothing is left of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from pagemesh.rpc import tasks
from pagemesh.rpc.tasks import cancel_to_end, one_ahead, run_to_end, until_done
from tests.support.waiting import wait_until


async def test_cancelling_is_put_off_until_the_work_is_over() -> None:
    go, over = asyncio.Event(), []

    async def work() -> None:
        await go.wait()
        over.append(True)

    caller = asyncio.create_task(run_to_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert over == [True]


async def test_the_work_gives_its_result_or_raises() -> None:
    async def give() -> int:
        return 7

    async def fail() -> int:
        raise ValueError("broken")

    assert await run_to_end(give()) == 7
    with pytest.raises(ValueError, match="broken"):
        await run_to_end(fail())


async def test_work_that_fails_after_its_caller_was_cancelled_says_so() -> None:
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        raise ValueError("broken")

    caller = asyncio.create_task(run_to_end(work()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(ValueError, match="broken"):
        await caller


async def test_who_waits_for_an_end_is_cancelled_behind_it() -> None:
    end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def fail_behind_it() -> None:
        try:
            raise ValueError("broken")
        finally:
            await until_done(end)

    caller = asyncio.create_task(fail_behind_it())
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    end.set_exception(OSError("nobody asks for it"))
    with pytest.raises(asyncio.CancelledError):
        await caller


@pytest.mark.parametrize("num_lost", [0, 1, 3])
async def test_a_task_that_loses_its_cancellation_is_cancelled_again(
    num_lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "CANCEL_AGAIN_S", 0.01)
    lost: list[bool] = []

    async def go_on() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if len(lost) == num_lost:
                    raise
                lost.append(True)

    task = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await cancel_to_end(task)
    assert task.cancelled()
    assert len(lost) == num_lost


async def test_a_task_that_is_over_is_left_alone() -> None:
    task = asyncio.create_task(asyncio.sleep(0, "over"))
    await task
    await cancel_to_end(task)
    assert task.result() == "over"


class Source:
    """Numbers from 0 on, and what became of it."""

    def __init__(self, end: int = 100, error: Exception | None = None) -> None:
        self.num_made = 0
        self.began = self.closed = False
        self.gate = asyncio.Event()
        self.gate.set()
        self._end = end
        self._error = error

    async def items(self) -> AsyncGenerator[int]:
        self.began = True
        try:
            for number in range(self._end):
                await self.gate.wait()
                self.num_made += 1
                yield number
            if self._error is not None:
                raise self._error
        finally:
            await asyncio.sleep(0)
            self.closed = True


async def test_the_next_item_is_made_while_one_is_used_and_no_more() -> None:
    source = Source()
    items = one_ahead(source.items())
    assert await anext(items) == 0
    await wait_until(lambda: source.num_made == 2, "one ahead")
    for _ in range(10):
        await asyncio.sleep(0)
    assert source.num_made == 2
    assert [await anext(items), await anext(items)] == [1, 2]
    await items.aclose()
    assert source.closed


async def test_all_items_come_in_order_and_then_the_end() -> None:
    source = Source(end=5)
    assert [item async for item in one_ahead(source.items())] == [0, 1, 2, 3, 4]
    assert source.closed


async def test_an_error_comes_behind_the_items_before_it() -> None:
    source = Source(end=2, error=ValueError("spoiled"))
    items = one_ahead(source.items())
    assert [await anext(items), await anext(items)] == [0, 1]
    with pytest.raises(ValueError, match="spoiled"):
        await anext(items)
    assert source.closed


async def test_whoever_stops_waiting_for_an_item_closes_the_source() -> None:
    source = Source()
    source.gate.clear()
    items = one_ahead(source.items())
    waiting = asyncio.ensure_future(anext(items))
    await wait_until(lambda: source.began, "the source asked")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await items.aclose()
    assert (source.closed, source.num_made) == (True, 0)


async def test_a_source_is_closed_only_behind_what_it_is_doing() -> None:
    order: list[str] = []

    async def stubborn() -> AsyncGenerator[int]:
        try:
            yield 0
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                order.append("gave up")
            yield 1
        finally:
            order.append("closed")

    items = one_ahead(stubborn())
    assert await anext(items) == 0
    await asyncio.sleep(0)
    await items.aclose()
    assert order == ["gave up", "closed"]
