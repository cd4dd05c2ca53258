"""Streams of snapshots: how many, how often, and when they end."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

from pagemesh.errors import OverloadedError
from pagemesh.router.console.watchers import MAX_WATCHERS, Watchers


class Source:
    """Snapshots that say which they are."""

    def __init__(self) -> None:
        self.num_taken = 0
        self.revision = 3

    def take(self, since: int) -> dict[str, Any]:
        self.num_taken += 1
        return {"since": since}


def payload(frame: bytes) -> Any:
    return json.loads(frame.decode().removeprefix("data: "))


async def test_the_first_has_everything_and_later_ones_what_is_new() -> None:
    source = Source()
    watchers = Watchers(source.take, lambda: source.revision, period=0.01)
    async with aclosing(watchers.frames()) as frames:
        assert payload(await anext(frames)) == {"since": 0}
        source.revision = 8
        assert payload(await anext(frames)) == {"since": 3}
        assert payload(await anext(frames)) == {"since": 8}


async def test_nothing_is_done_when_nobody_looks() -> None:
    source = Source()
    watchers = Watchers(source.take, lambda: source.revision, period=0.01)
    async with aclosing(watchers.frames()) as frames:
        await anext(frames)
        assert watchers.num_watchers == 1
    taken = source.num_taken
    await asyncio.sleep(0.05)
    assert (watchers.num_watchers, source.num_taken) == (0, taken)


async def test_streams_end_when_the_router_stops() -> None:
    watchers = Watchers(Source().take, lambda: 0, period=60)
    frames = watchers.frames()
    await anext(frames)
    rest = asyncio.create_task(anext(frames, None))
    await asyncio.sleep(0)
    await watchers.close()
    assert await asyncio.wait_for(rest, 5) is None
    assert watchers.num_watchers == 0


async def test_too_many_are_refused_and_a_place_comes_back() -> None:
    watchers = Watchers(Source().take, lambda: 0, period=60)
    looking = [watchers.frames() for _ in range(MAX_WATCHERS)]
    for frames in looking:
        await anext(frames)
    with pytest.raises(OverloadedError, match=f"^{MAX_WATCHERS} clients"):
        await anext(watchers.frames())
    await looking[0].aclose()
    again = watchers.frames()
    await anext(again)
    for frames in (again, *looking[1:]):
        await frames.aclose()
