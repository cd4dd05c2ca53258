"""Items are made one ahead, and nothing is left of them however that ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from pagemesh.rpc.tasks import one_ahead
from tests.support.waiting import wait_until


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
